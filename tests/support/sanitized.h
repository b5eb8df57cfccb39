#pragma once

namespace facet::test {

// Sanitizers make the engine some twenty times slower: under them, tests of many cases take one of each kind.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace facet::test
