#include "model/find_drafter.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

using Words = std::vector<std::string>;

TEST(FindDrafter, NamesOfOneModelHaveTheSameWords) {
  const Words x{"gemma", "4", "26b", "a4b", "it"};
  for (const char* name : {"gemma-4-26B-A4B-it-UD-Q4_K_XL.gguf", "gemma-4-26B-A4B-it.gguf",
                           "/models/gemma-4-26B-A4B-it-Q8_0.gguf", "gemma-4-26B-A4B-it-IQ4_XS-00001-of-00003.gguf",
                           "mtp-gemma-4-26B-A4B-it.gguf", "mtp-gemma-4-26B-A4B-it-UD-Q6_K.gguf",
                           "gemma-4-26B-A4B-it-BF16-MTP.gguf", "gemma-4-26B-A4B-it-assistant-MTP-Q8_0.gguf",
                           "gemma-4-26B-A4B-it-DFlash-q4_k_m.gguf", "gemma-4-26b-a4b-it-dflash-draft-f16.gguf"})
    EXPECT_EQ(name_words(name), x) << name;
  for (const char* name : {"dflash.gguf", "mtp-Q8_0.gguf", "dflash-draft-IQ4_NL.gguf", ""})
    EXPECT_EQ(name_words(name), Words{}) << name;
  EXPECT_EQ(name_words("facet-nano-moe-Q4_K_M.gguf"), (Words{"facet", "nano", "moe"}));
  EXPECT_NE(name_words("qwen3-8b-q4_0.gguf"), name_words("qwen3-4b-q4_0.gguf"));
}

}  // namespace
}  // namespace facet
