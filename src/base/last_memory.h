#pragma once

// Where memory runs out an exception ends the work that needed it. But destructors must not throw, and those of JSON
// values allocate: so some address space is kept for them, which costs no memory while nobody uses it.
namespace facet {

// Keeps it, or takes it back after it was given out, if there is room. Any thread; called again and again.
void keep_last_memory();

// While it lives, allocations of this thread may use the last memory. During the unwinding of an exception all may.
class MayNotFail {
 public:
  MayNotFail();
  ~MayNotFail();
  MayNotFail(const MayNotFail&) = delete;
  MayNotFail& operator=(const MayNotFail&) = delete;
};

}  // namespace facet
