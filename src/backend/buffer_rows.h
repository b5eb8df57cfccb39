#pragma once
#include "base/check.h"

namespace facet {

// Rows of a backend that is made of several: a place in a buffer that each of them has.
template <class Buffer>
struct BufferRows {
  Buffer* buffer = nullptr;
  int rows = 0, cols = 0;
  int row0 = 0, col0 = 0;
  bool piece = false;  // some columns, beside others that stay as they are
  BufferRows view(int r, int c) const {
    CHECK(r <= rows && col0 + c <= buffer->cols, "view [{}, {}] of rows [{}, {}]", r, c, rows, buffer->cols - col0);
    return {buffer, r, c, row0, col0, piece};
  }
  BufferRows cols_at(int begin, int n) const {
    CHECK(begin >= 0 && begin + n <= cols, "columns {}..{} of {}", begin, begin + n, cols);
    return {buffer, rows, n, row0, col0 + begin, piece || n < cols};
  }
  BufferRows rows_at(int begin, int n) const {
    CHECK(begin >= 0 && begin + n <= rows, "rows {}..{} of {}", begin, begin + n, rows);
    return {buffer, n, cols, row0 + begin, col0, piece};
  }
  explicit operator bool() const { return buffer != nullptr; }
};

}  // namespace facet
