#pragma once

#ifdef __has_feature  // Clang
#define FACET_SANITIZED __has_feature(address_sanitizer)
#elif defined __SANITIZE_ADDRESS__
#define FACET_SANITIZED 1
#else
#define FACET_SANITIZED 0
#endif

namespace facet::test {

// Sanitizers make the engine some twenty times slower: under them, tests of many cases take one of each kind.
inline constexpr bool kSanitized = FACET_SANITIZED;

}  // namespace facet::test
