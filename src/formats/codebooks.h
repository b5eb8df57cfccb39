#pragma once
#include <cstdint>

// The code books of the IQ types: which groups of magnitudes a code may stand for. They are part of the format, as
// ggml-common.h of llama.cpp (MIT) and the Python package gguf have them; nothing here was chosen by facet.
namespace facet {

template <class Word, int N>
struct CodeBook {
  Word entry[N];
};

// Eight magnitudes of 8, 25, 43, one a byte, the first lowest.
extern const CodeBook<uint64_t, 256> kIq2XxsGrid;
extern const CodeBook<uint64_t, 512> kIq2XsGrid;
extern const CodeBook<uint64_t, 1024> kIq2SGrid;
// Four magnitudes: of 4, 12, .. 52, 62; and of 1, 3, .. 15.
extern const CodeBook<uint32_t, 256> kIq3XxsGrid;
extern const CodeBook<uint32_t, 512> kIq3SGrid;
// Eight values of -8, 0, 8 as signed bytes: eight times what the format says, so that its shift by an eighth is 1.
extern const CodeBook<uint64_t, 2048> kIq1Grid;

// Seven sign bits with the eighth that makes their number even.
extern const CodeBook<uint8_t, 128> kSignByte;

}  // namespace facet
