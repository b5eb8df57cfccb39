#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace facet {

// Bytes of memory that several owners share, counted while they are used. Any thread.
class Room {
 public:
  // most: bytes of all parts together; own: bytes of each part that are not counted, so that what is small always fits.
  Room(uint64_t most, uint64_t own) : most_(most), own_(own) {}
  uint64_t used() const { return used_; }
  // Whether a new part of so many bytes would fit now.
  bool has(uint64_t bytes) const { return bytes <= own_ || used_ + (bytes - own_) <= most_; }

  // What one owner uses. It is given back with the part.
  class Part {
   public:
    Part() = default;
    explicit Part(std::shared_ptr<Room> room) : room_(std::move(room)) {}
    Part(Part&& other) noexcept { swap(other); }
    Part& operator=(Part&& other) noexcept {
      Part gone(std::move(other));
      swap(gone);
      return *this;
    }
    ~Part() { release(); }
    // Of `bytes` in all from now on; false: there is no room, and the part stays as it was.
    bool resize(uint64_t bytes) {
      if (!room_) return true;
      const uint64_t n = bytes > room_->own_ ? bytes - room_->own_ : 0;
      if (n > counted_ && !room_->take(n - counted_)) return false;
      if (n < counted_) room_->used_ -= counted_ - n;
      counted_ = n;
      return true;
    }
    void release() { resize(0); }

   private:
    void swap(Part& other) {
      std::swap(room_, other.room_);
      std::swap(counted_, other.counted_);
    }
    std::shared_ptr<Room> room_ = {};
    uint64_t counted_ = 0;
  };

 private:
  bool take(uint64_t n) {
    uint64_t used = used_;
    while (n <= most_ && used <= most_ - n)
      if (used_.compare_exchange_weak(used, used + n)) return true;
    return false;
  }
  const uint64_t most_, own_;
  std::atomic<uint64_t> used_ = 0;
};

}  // namespace facet
