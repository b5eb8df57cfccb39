// Files as other people's tools write them, made from the shipped models: they load, say the same and are parsed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/bytes.h"
#include "support/rewrite_gguf.h"
#include "support/run_program.h"

namespace facet::test {
namespace {

namespace fs = std::filesystem;

const std::string kModels = FACET_SOURCE_DIR "/models/";
const std::string kNano = kModels + "facet-nano-Q8_0.gguf", kMoe = kModels + "facet-nano-moe-Q4_K_M.gguf";

Ran out_of(const std::string& args) { return run_program(args, Streams::kOut); }
Ran all_of(const std::string& args) { return run_program(args, Streams::kBoth); }

// As Ollama's converter writes a model: another name for the tokenizer, every added token a control token and every
// byte a normal one, scores, and the encoders of pictures and sound in the same file.
void write_ollama(const std::string& from, const std::string& to) {
  const auto in = must(GgufFile::open(from));
  const auto tokens = must(in.get_strings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types = must(in.get_ints("tokenizer.ggml.token_type", 0));
  std::vector<int64_t> ends;
  std::vector<double> scores;
  for (size_t i = 0; i < types.size(); ++i) {
    types[i] = types[i] == 6 ? 1 : types[i] == 4 || types[i] == 2 ? 3 : types[i];
    scores.push_back(double(i));
    if (tokens[i] == "<eos>" || tokens[i] == "<turn|>" || tokens[i] == "<|tool_response>") ends.push_back(int64_t(i));
  }
  rewrite_gguf(from, to,
               {.key = without({"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.token_type",
                                "tokenizer.ggml.scores", "tokenizer.ggml.eos_token_ids"}),
                .tensor =
                    [](const std::string& n) {
                      const std::string scale = "ffn_down_exps.scale";
                      const size_t at = n.find(scale);
                      return at == n.npos ? n : n.substr(0, at) + "ffn_gate_inp.per_expert_scale";
                    },
                .more =
                    [&](GgufWriter& w) {
                      w.add("tokenizer.ggml.model", "llama");
                      w.add("tokenizer.ggml.pre", "gemma4");
                      w.add("tokenizer.ggml.token_type", types);
                      w.add("tokenizer.ggml.scores", scores);
                      w.add("tokenizer.ggml.eos_token_ids", ends);
                      w.add("gemma4.vision.block_count", 1);
                      w.add("gemma4.audio.block_count", 1);
                    },
                .extra = {{"v.blk.0.attn_q.weight", DType::kBF16, {48, 48}},
                          {"v.patch_embd.weight", DType::kF16, {16, 16, 3, 48}},
                          {"v.position_embd.weight", DType::kF32, {48, 10, 2}},
                          {"v.clamp_data", DType::kF32, {32}},
                          {"a.blk.0.conv_dw.weight", DType::kF32, {5, 24}},
                          {"a.conv1d.0.weight", DType::kF32, {3, 3, 1, 8}},
                          {"mm.input_projection.weight", DType::kBF16, {48, 64}},
                          {"mm.a.fc.weight", DType::kBF16, {24, 64}}}});
}

class ForeignFiles : public testing::Test {
 protected:
  std::string text_file(const std::string& name, const std::string& text) const {
    std::ofstream(dir_.file(name), std::ios::binary) << text;
    return dir_.file(name);
  }
  // The model's text, markers and all, after a conversation.
  std::string said(const std::string& model, const std::string& conversation) const {
    const std::string prompt = dir_.file("prompt");
    EXPECT_EQ(out_of("render < " + text_file("chat.json", conversation) + " > " + prompt).rc, 0);
    const Ran r =
        out_of("run --backend cpu --draft none -c 1024 --temp 0 --raw -m " + model + " -p \"$(cat " + prompt + ")\"");
    EXPECT_EQ(r.rc, 0);
    return r.out.substr(0, r.out.size() - 1);
  }
  nlohmann::json parsed(const std::string& text) const {
    const Ran r = out_of("parse < " + text_file("said", text));
    EXPECT_EQ(r.rc, 0);
    return nlohmann::json::parse(r.out, nullptr, false);
  }
  TempDir dir_;
};

constexpr const char* kWeather = R"({"add_generation_prompt": true,
  "messages": [{"role": "user", "content": "What is the weather in London in Celsius?"}],
  "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"},
      "unit": {"type": "string", "description": "Unit", "enum": ["C", "F"]}}, "required": ["city"]}}}]})";
constexpr const char* kThink = R"({"add_generation_prompt": true, "enable_thinking": true,
  "messages": [{"role": "user", "content": "What is 12 + 30?"}]})";

TEST_F(ForeignFiles, OllamasSayTheSame) {
  for (const std::string& model : {kNano, kMoe}) {
    const std::string ollama = dir_.file("sha256-0123456789abcdef");  // how its blobs are named
    write_ollama(model, ollama);
    const std::string thought = said(ollama, kThink), call = said(ollama, kWeather);
    EXPECT_EQ(thought, said(model, kThink));
    EXPECT_EQ(call, said(model, kWeather));
    const nlohmann::json t = parsed(thought), c = parsed(call);
    EXPECT_FALSE(t["reasoning_content"].get<std::string>().empty()) << t;
    EXPECT_TRUE(has(t["content"].get<std::string>(), "42")) << t;
    ASSERT_EQ(c["tool_calls"].size(), 1u) << c;
    EXPECT_EQ(c["tool_calls"][0]["function"]["name"], "get_weather");
    EXPECT_TRUE(has(c["tool_calls"][0]["function"]["arguments"].get<std::string>(), "London")) << c;
    const Ran plan = all_of("plan -c 1024 -m " + ollama);
    EXPECT_EQ(plan.rc, 0) << plan.out;
    const Ran notes = all_of("run --backend cpu -c 512 --temp 0 -n 4 -p Hello -m " + ollama);
    EXPECT_EQ(notes.rc, 0);
    EXPECT_FALSE(has(notes.out, "note: ")) << notes.out;
    EXPECT_EQ(all_of("inspect " + ollama).rc, 0);
  }
}

TEST_F(ForeignFiles, AnotherTemplateIsSaidAndItsEndHonoured) {
  const auto in = must(GgufFile::open(kNano));
  const auto tokens = must(in.get_strings("tokenizer.ggml.tokens"));
  const int64_t id = std::find(tokens.begin(), tokens.end(), "4") - tokens.begin();
  ASSERT_LT(id, int64_t(tokens.size()));
  const std::string path = dir_.file("chatml.gguf");
  rewrite_gguf(kNano, path,
               {.key = without({"tokenizer.chat_template", "tokenizer.ggml.eos_token_id"}), .more = [&](GgufWriter& w) {
                  w.add("tokenizer.chat_template", "{{ '<|im_start|>' + message['role'] }}");
                  w.add("tokenizer.ggml.eos_token_id", id);
                }});
  const Ran r = all_of("run --backend cpu --draft none -c 512 --temp 0 -p 'What is 17 + 25?' -m " + path);
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "tokenizer.chat_template has no <|turn>")) << r.out;
  EXPECT_TRUE(has(r.out, fmt::format("token {} 4 is declared as an end", id))) << r.out;
  EXPECT_TRUE(has(r.out, "17 + 25 = \n")) << r.out;  // ends before the 4 of 42
}

TEST_F(ForeignFiles, LayersBeyondTheCountAreRefusedAlike) {
  const std::string path = dir_.file("more.gguf");
  rewrite_gguf(kNano, path, {.extra = {{"blk.99.attn_norm.weight", DType::kF32, {8}}}});
  for (const char* command : {"plan", "run -p x"}) {
    const Ran r = all_of(std::string(command) + " -c 512 -m " + path);
    EXPECT_EQ(r.rc, 1) << command;
    EXPECT_TRUE(has(r.out, "gemma4.block_count: expected every layer that has tensors")) << r.out;
    EXPECT_TRUE(has(r.out, "blk.99.attn_norm.weight")) << r.out;
  }
}

// --- drafters under the names that they are published with

class PublishedNames : public ForeignFiles {
 protected:
  void SetUp() override {
    model_ = dir_.file("gemma-nano-it-UD-Q4_K_XL.gguf");
    fs::copy(kNano, model_);
  }
  std::string place(const std::string& kind, const std::string& name) const {
    fs::create_directories(fs::path(dir_.file(name)).parent_path());
    fs::copy(kModels + "facet-nano-" + kind + "-Q8_0.gguf", dir_.file(name));
    return dir_.file(name);
  }
  // Of the same width, and so much smaller that it comes first.
  std::string place_unfit(const std::string& name) const {
    rewrite_gguf(kModels + "facet-nano-mtp-Q8_0.gguf", dir_.file(name),
                 {.tensor = [](const std::string& n) { return n == "nextn.post_projection.weight" ? "" : n; }});
    return dir_.file(name);
  }
  Ran answer(const std::string& draft) const {
    return all_of("run --backend cpu -c 512 --temp 0 -n 8 -p Hello -m " + model_ + " --draft " + draft);
  }
  std::string model_;
};

TEST_F(PublishedNames, AreFound) {
  for (const auto& [kind, name] :
       {std::pair{"mtp", "mtp-gemma-nano-it.gguf"}, std::pair{"mtp", "MTP/gemma-nano-it-Q8_0-MTP.gguf"},
        std::pair{"mtp", "gemma-nano-it-assistant-MTP-Q8_0.gguf"}, std::pair{"mtp", "gemma-nano-it-UD-mtp-Q4_K_M.gguf"},
        std::pair{"dflash", "gemma-nano-it-dflash.gguf"}, std::pair{"dflash", "dflash-draft-IQ4_XS.gguf"},
        std::pair{"dflash", "other-model-DFlash-Q8_0.gguf"}}) {
    const std::string path = place(kind, name);
    for (const std::string& how : {std::string("auto"), std::string(kind)}) {
      const Ran r = answer(how);
      EXPECT_EQ(r.rc, 0) << r.out;
      EXPECT_TRUE(has(r.out, "drafter: " + path)) << name << "\n" << r.out;
      EXPECT_FALSE(has(r.out, "note: ")) << r.out;
    }
    fs::remove(path);
  }
  const Ran none = answer("mtp");
  EXPECT_EQ(none.rc, 1);
  EXPECT_TRUE(has(none.out, "expected a drafter that fits")) << none.out;
  EXPECT_FALSE(has(answer("auto").out, "drafter: "));
}

TEST_F(PublishedNames, TheSmallestThatFitsIsTaken) {
  const std::string small = place("mtp", "mtp-gemma-nano-it-Q8_0.gguf"), large = dir_.file("mtp-gemma-nano-it.gguf");
  rewrite_gguf(small, large, {.more = [](GgufWriter& w) { w.add("general.comment", std::string(10000, 'x')); }});
  const Ran r = answer("auto");
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "drafter: " + small)) << r.out;
  EXPECT_TRUE(has(r.out, "the smallest drafter here that fits")) << r.out;
  // The model's own name comes before size, content before the name.
  const std::string other = place("mtp", "mtp-another.gguf");
  fs::remove(small);
  EXPECT_TRUE(has(answer("auto").out, "drafter: " + large));
  fs::copy(kModels + "facet-nano-dflash-Q8_0.gguf", large, fs::copy_options::overwrite_existing);  // named wrongly
  EXPECT_TRUE(has(answer("auto").out, "drafter: " + other));
}

TEST_F(PublishedNames, ABrokenOneIsPassedOver) {
  const std::string unfit = place_unfit("mtp-gemma-nano-it.gguf");
  const std::string cut = place("dflash", "gemma-nano-it-dflash-Q8_0.gguf");
  fs::resize_file(cut, fs::file_size(cut) / 2);
  const Ran r = answer("auto");
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "drafter passed over: " + unfit + ": nextn.post_projection.weight")) << r.out;
  EXPECT_TRUE(has(r.out, "drafter passed over: " + cut)) << r.out;
  EXPECT_FALSE(has(r.out, "drafter: ")) << r.out;
  EXPECT_EQ(answer("mtp").rc, 1);  // asked for, it must be there
  EXPECT_EQ(answer(unfit).rc, 1);
}

// What only shows when its tensors are bound.
TEST_F(PublishedNames, OneThatBreaksWhileItLoadsIsLeftOut) {
  const std::string broken = dir_.file("gemma-nano-it-dflash.gguf");
  rewrite_gguf(kModels + "facet-nano-dflash-Q8_0.gguf", broken,
               {.tensor = [](const std::string& n) { return n == "blk.0.ffn_up.weight" ? "" : n; }});
  const std::string good = place("mtp", "mtp-gemma-nano-it.gguf");
  const Ran r = answer("auto");
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "the model runs without this drafter: " + broken + ": blk.0.ffn_up.weight")) << r.out;
  EXPECT_TRUE(has(r.out, "drafter: " + good)) << r.out;
  EXPECT_EQ(answer("dflash").rc, 1);
  EXPECT_EQ(answer(broken).rc, 1);
}

TEST_F(PublishedNames, AFolderIsLookedThrough) {
  const std::string folder = dir_.file("drafters");
  const std::string good = place("mtp", "drafters/b.gguf");
  const std::string unfit = place_unfit("drafters/a.gguf");
  const Ran r = answer(folder);
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "drafter: " + good)) << r.out;
  const std::string dflash = place("dflash", "drafters/c.gguf");
  EXPECT_TRUE(has(answer(folder).out, "drafter: " + dflash)) << "one of each kind";
  fs::remove(good), fs::remove(dflash);
  const Ran none = answer(folder);
  EXPECT_EQ(none.rc, 1);
  EXPECT_TRUE(has(none.out, unfit + ": nextn.post_projection.weight")) << none.out;
  fs::remove(unfit);
  EXPECT_EQ(answer(folder).rc, 1);
}

// Relatives of DFlash in its files: their heads would be left out in silence, and their rows mean other tokens.
TEST_F(PublishedNames, OtherHeadsAreRefused) {
  const std::string path = dir_.file("x.gguf"), dflash = kModels + "facet-nano-dflash-Q8_0.gguf";
  struct Case {
    const char *tensor, *key, *said;
  };
  for (const Case& c : {Case{"dflash.dspark.markov_w1.weight", "", "a DSpark head"},
                        {"dflash.domino.gru.weight_ih", "", "a Domino head"},
                        {"other.weight", "", "a part that facet does not know"},
                        {"", "dflash-draft.dspark.markov_rank", "a DSpark head"},
                        {"", "dflash-draft.dflash.domino.enabled", "a Domino head"}}) {
    Rewrite r;
    if (*c.tensor) r.extra = {{c.tensor, DType::kF32, {4}}};
    if (*c.key) r.more = [&](GgufWriter& w) { w.add(c.key, 1); };
    rewrite_gguf(dflash, path, r);
    const Ran ran = answer(path);
    EXPECT_EQ(ran.rc, 1) << ran.out;
    EXPECT_TRUE(
        has(ran.out, std::string(*c.tensor ? c.tensor : c.key) + ": expected a plain DFlash drafter, found " + c.said))
        << ran.out;
  }
  // Half of a head that facet has.
  for (const char* tensor : {"markov_head.markov_w1.weight", "conf_proj.weight", "selector_hidden.weight"}) {
    rewrite_gguf(dflash, path, {.extra = {{tensor, DType::kF32, {4}}}});
    const Ran ran = answer(path);
    EXPECT_EQ(ran.rc, 1) << ran.out;
    EXPECT_TRUE(has(ran.out, ": expected ")) << ran.out;
  }
  // What a slot is about is the file's to say.
  rewrite_gguf(dflash, path, {.more = [](GgufWriter& w) { w.add("dflash.sample_from_anchor", true); }});
  EXPECT_EQ(answer(path).rc, 0);
  EXPECT_TRUE(has(all_of("inspect " + path).out, "the token behind its position (sample_from_anchor)"));
  rewrite_gguf(dflash, path, {.more = [](GgufWriter& w) { w.add("dflash-draft.dflash.domino.enabled", 0); }});
  EXPECT_EQ(answer(path).rc, 0);
}

}  // namespace
}  // namespace facet::test
