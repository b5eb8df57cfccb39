// The program on its model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/bytes.h"
#include "support/run_program.h"
#include "support/terminal.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

Ran shell(const std::string& args, bool both = false) {
  return run_program(args, both ? Streams::kBoth : Streams::kOut);
}
int lines(const std::string& s) { return int(std::count(s.begin(), s.end(), '\n')); }

TEST(Program, AnswersAPrompt) {
  const Ran r = shell("run -p 'What is 17 + 25?' --temp 0 -c 1024");
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "42")) << r.out;
  EXPECT_EQ(lines(r.out), 1) << "only the answer: " << r.out;
}

// Moved away from its tree, a program finds models by FACET_MODELS.
TEST(Program, FindsModelsByTheEnvironment) {
  const TempDir dir;
  const std::string moved = dir.file("facet");
  std::filesystem::copy_file(FACET_PROGRAM, moved);
  const auto run = [&](const std::string& before, const std::string& args) {
    return run_command("echo Hello | " + before + " '" + moved + "' " + args + " 2>&1");
  };
  const std::string synth = "synth --preset tiny --quant Q8_0 --vocab '" + dir.file("x.gguf") + "'";
  for (const std::string& args : {std::string("tokenize"), synth}) {
    const Ran none = run("env -u FACET_MODELS", args);
    EXPECT_NE(none.rc, 0) << none.out;
    EXPECT_TRUE(has(none.out, "FACET_MODELS")) << none.out;
  }
  const Ran found = run("FACET_MODELS='" FACET_SOURCE_DIR "/models'", "tokenize");
  EXPECT_EQ(found.rc, 0) << found.out;
  const Ran wrong = run("FACET_MODELS='" + dir.file("") + "'", "tokenize");
  EXPECT_NE(wrong.rc, 0);
  // One beside the tree is found whatever the variable says.
  EXPECT_EQ(run_command("echo Hello | FACET_MODELS=/nowhere '" FACET_PROGRAM "' tokenize 2>&1").rc, 0);
}

TEST(Program, BenchExplains) {
  const Ran r = shell("bench --backend cpu -c 256 --depths 0 --widths 2 --prefill 0 --runs 1 --explain", true);
  EXPECT_EQ(r.rc, 0);
  for (const char* part : {"decode ", "gate_up", "attend", "all verbs", "the steps' median"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
}

// A prompt longer than a chunk; the table on standard output, lines of JSON in a file.
TEST(Program, BenchReadsPromptsInChunks) {
  const TempDir dir;
  const Ran r = shell("bench --backend cpu --depths 30 --widths 2 --prefill 300 --chunk 128 --runs 1 --json " +
                      dir.file("rows.jsonl"));
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "prefill     300     30         f16 ")) << r.out;
  EXPECT_FALSE(has(r.out, "{")) << r.out;
  std::ifstream in(dir.file("rows.jsonl"));
  const std::string rows(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(lines(rows), 3) << rows;
  EXPECT_TRUE(has(rows, "{\"phase\":\"prefill\",\"n\":300,\"depth\":30,\"kv_k\":\"f16\"")) << rows;
  std::istringstream each(rows);
  for (std::string line; std::getline(each, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(j.is_discarded()) << line;
    const double n = j["n"], ms = j["ms_median"], rate = j["tok_s"], bytes = j["bytes"], gbps = j["gbps"];
    EXPECT_NEAR(rate, 1e3 * n / ms, 1e-6 * rate) << line;
    EXPECT_NEAR(gbps, bytes / ms / 1e6, 1e-6 * gbps) << line;
  }
  // Without a file the lines go to whoever reads standard output.
  const Ran piped = shell("bench --backend cpu -c 64 --depths 0 --widths 2 --prefill 0 --runs 1");
  EXPECT_EQ(lines(piped.out), 2) << piped.out;
  EXPECT_TRUE(has(piped.out, "{\"phase\":\"decode\",\"n\":1,")) << piped.out;
  const Ran small = shell("bench --backend cpu -c 256 --depths 0 --prefill 257 --runs 1", true);
  EXPECT_EQ(small.rc, 1);
  EXPECT_TRUE(has(small.out, "-c: expected at least 257 rows")) << small.out;
}

// Prompts of a file, as the usual sets of questions would be: a line for each length, with what was accepted.
TEST(Program, BenchSpecReadsPromptsOfAFile) {
  const TempDir dir;
  std::ofstream out(dir.file("p.jsonl"));
  for (const auto& [kind, question] : {std::pair{"human-eval", "Count from 1 to 9."}, {"mt-bench", "What is 17 + 25?"}})
    out << nlohmann::json{{"kind", kind},
                          {"length", 0},
                          {"context", "<bos><|turn>user\n" + std::string(question) + "<turn|>\n<|turn>model\n"},
                          {"answer", "1"}}
        << "\n";
  out.close();
  const Ran r = shell("bench spec --backend cpu -t 1 --draft dflash --lengths 3 --count 1 -n 12 --runs 1 --prompts " +
                          dir.file("p.jsonl") + " --sets human-eval,mt-bench --json " + dir.file("rows.jsonl"),
                      true);
  ASSERT_EQ(r.rc, 0) << r.out;
  std::ifstream in(dir.file("rows.jsonl"));
  int n = 0;
  for (std::string line; std::getline(in, line); ++n) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(j.is_discarded()) << line;
    EXPECT_EQ(j["set"], n % 2 ? "mt-bench" : "human-eval");
    EXPECT_EQ(j["method"], n < 2 ? "none" : "dflash");
    EXPECT_GT(j["tok_s"], 0);
    const double steps = j["tokens_per_step"];
    if (n < 2) {
      EXPECT_EQ(steps, 1);
    } else {
      EXPECT_GT(j["drafted"], 0);
      EXPECT_LE(j["accepted"], j["drafted"]);
      EXPECT_GE(steps, 1);
      EXPECT_LE(steps, 4);
    }
  }
  EXPECT_EQ(n, 4) << r.out;
  EXPECT_TRUE(has(shell("bench spec --prompts " + dir.file("p.jsonl") + " --sets gsm8k", true).out, "gsm8k"));
}

// Plain decoding and drafting of as many sequences as are asked for, all of which decode together.
TEST(Program, BenchSpecOfSequencesThatDecodeTogether) {
  const TempDir dir;
  const Ran r = shell(
      "bench spec --backend cpu -t 1 -c 256 --draft dflash --lengths 3 --count 2 -n 32 --runs 1 --sets prose "
      "--forced 1,1,1 --sequences 1,3 --json " +
          dir.file("rows.jsonl"),
      true);
  ASSERT_EQ(r.rc, 0) << r.out;
  std::ifstream in(dir.file("rows.jsonl"));
  int n = 0;
  for (std::string line; std::getline(in, line); ++n) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(j.is_discarded()) << line;
    EXPECT_EQ(j["sequences"], n < 2 ? 1 : 3);
    EXPECT_EQ(j["method"], n % 2 ? "dflash" : "none");
    EXPECT_GT(j["tok_s"], 0);
    if (n % 2)
      EXPECT_GT(j["tokens_per_step"], 3) << "of three drafts that are always right";
    else
      EXPECT_EQ(j["tokens_per_step"], 1);
  }
  EXPECT_EQ(n, 4) << r.out;
  const Ran one =
      shell("bench spec --backend cpu -t 1 -c 256 --draft none --count 1 -n 2 --skip 8 --sequences 2", true);
  EXPECT_EQ(one.rc, 1);
  EXPECT_TRUE(has(one.out, "--sequences")) << one.out;
}

TEST(Program, AnswersWithExperts) {
  const Ran r =
      shell("run -m " FACET_SOURCE_DIR "/models/facet-nano-moe-Q4_K_M.gguf -p 'What is 17 + 25?' --temp 0 -c 1024");
  EXPECT_EQ(r.rc, 0);
  EXPECT_EQ(r.out, "17 + 25 = 42\n");
}

// What a user can do nothing about is no note.
TEST(Program, StartsWithoutNotes) {
  for (const char* kind : {"dflash", "mtp"})
    for (const char* model : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"}) {
      const Ran r = shell(
          std::string("run -m " FACET_SOURCE_DIR "/models/") + model + " -p Hello --temp 0 -n 4 -c 512 --draft " + kind,
          true);
      EXPECT_EQ(r.rc, 0) << r.out;
      EXPECT_TRUE(has(r.out, "drafter: ")) << r.out;
      EXPECT_TRUE(has(r.out, std::string("-") + kind + "-Q8_0.gguf\n")) << r.out;
      EXPECT_FALSE(has(r.out, "note: ")) << r.out;
    }
}

// Names of llama.cpp and of other engines, each with a note that says what it is called here.
TEST(Program, TakesTheNamesOfOthers) {
  const std::string ask = "run -p 'What is 17 + 25?' --temp 0 -c 512 -n 8 ",
                    drafter = "models/facet-nano-mtp-Q8_0.gguf";
  const std::string path = std::string(FACET_SOURCE_DIR) + "/" + drafter;
  struct Row {
    std::string args, note;
  };
  const Row rows[] = {{"-md " + path, "note: -md " + path + " is --draft " + path + " here"},
                      {"--mtp " + path, "is --draft " + path},
                      {"--draft-method=none", "note: --draft-method none is --draft none here"},
                      {"--spec-type draft-dflash", "note: --spec-type draft-dflash is --draft dflash here"},
                      {"--spec-type ngram-simple", "is --draft suffix here"},
                      {"--spec-draft-n-max 3", "note: --spec-draft-n-max 3 is --draft-max 3 here"},
                      {"-ctk q8_0 -ctv q8_0", "note: -ctv q8_0 is --kv-v q8_0 here"},
                      {"-ngl 0", "note: -ngl 0 is --backend cpu here"},
                      {"-ngl 99", "note: -ngl 99 is --backend auto here"}};
  const std::string plain = shell(ask + "--draft none").out;
  for (const Row& row : rows) {
    EXPECT_EQ(shell(ask + row.args).out, plain) << row.args;
    const Ran r = shell(ask + row.args, true);
    EXPECT_EQ(r.rc, 0) << row.args << r.out;
    EXPECT_TRUE(has(r.out, row.note)) << row.args << "\n" << r.out;
  }
  // What is the value of another option stays one, and commands without the option do not know the name.
  EXPECT_FALSE(has(shell("run -p --mtp -n 1 -c 256", true).out, "note: --mtp"));
  EXPECT_EQ(shell("inspect -ctk q8_0 x", true).rc, 2);
  EXPECT_EQ(shell(ask + "--spec-draft-n-max", true).rc, 2);
  EXPECT_EQ(shell(ask + "-ctk q7", true).rc, 2);
}

// tokenize writes what --tokens reads; a prompt without <bos> is told, or gets one.
TEST(Program, TokensFromTextToFileToPrompt) {
  const TempDir dir;
  const std::string with = dir.file("with.i32"), without = dir.file("without.i32");
  std::ofstream(dir.file("text")) << "The capital of France is";
  EXPECT_EQ(shell("tokenize --out-tokens " + with + " < " + dir.file("text")).out, "");
  EXPECT_EQ(shell("tokenize --no-bos --out-tokens " + without + " < " + dir.file("text")).rc, 0);
  EXPECT_EQ(std::filesystem::file_size(with), std::filesystem::file_size(without) + 4);
  const std::string run = " --temp 0 -c 512 -n 6 --out-tokens " + dir.file("answer.i32") + " --tokens ";
  const auto answer = [&](const std::string& args) {
    EXPECT_EQ(shell("run" + run + args).rc, 0);
    std::ifstream in(dir.file("answer.i32"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(answer(without + " --add-bos"), answer(with));
  EXPECT_EQ(answer(with + " --add-bos"), answer(with)) << "one is enough";
  EXPECT_TRUE(has(shell("run" + run + without, true).out, "does not begin with <bos> (")) << "told";
  EXPECT_FALSE(has(shell("run" + run + with, true).out, "<bos>"));
  EXPECT_FALSE(has(shell("run" + run + without + " --add-bos", true).out, "<bos>"));
}

// A line for each draft: its sums are those that the program prints.
TEST(Program, TracesDrafts) {
  const TempDir dir;
  const Ran r = shell(
      "run -p 'Count from 1 to 20.' --draft-min 1 --temp 0 -c 512 -n 40 --spec-trace " + dir.file("t.jsonl"), true);
  EXPECT_EQ(r.rc, 0) << r.out;
  std::ifstream in(dir.file("t.jsonl"));
  int drafted = 0, accepted = 0, rounds = 0;
  for (std::string line; std::getline(in, line); ++rounds) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(j.is_discarded()) << line;
    const auto draft = j["draft"].get<std::vector<int>>(), drawn = j["drawn"].get<std::vector<int>>();
    ASSERT_EQ(drawn.size(), draft.size() + 1);
    int right = 0;
    while (right < int(draft.size()) && draft[size_t(right)] == drawn[size_t(right)]) ++right;
    EXPECT_EQ(j["accepted"], right);
    drafted += int(draft.size()), accepted += right;
  }
  EXPECT_GT(rounds, 0);
  EXPECT_TRUE(has(r.out, "drafts accepted " + std::to_string(accepted) + " of " + std::to_string(drafted))) << r.out;
}

TEST(Program, TheSameSeedGivesTheSameText) {
  const std::string args = "run -p 'Tell me a story' -c 1024 -n 40 --temp 1.5 --seed ";
  EXPECT_EQ(shell(args + "1").out, shell(args + "1 --chunk 3").out) << "steps were cut otherwise";
  EXPECT_NE(shell(args + "1").out, shell(args + "2").out);
}

TEST(Program, HoldsAConversation) {
  const Ran r = shell(
      "chat --temp 0 -c 2048 --think <<'E'\nMy name is Mira.\nWhat is my name?\n/think off\nWhat is my "
      "name?\n/undo\n/stats\n/nonsense\n/exit\nE",
      true);
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "Mira")) << r.out;
  EXPECT_TRUE(has(r.out, "unknown command"));
  // The second turn computes only what is new, though the first answer's thought is gone from the prompt.
  EXPECT_FALSE(has(r.out.substr(r.out.find("What is my name?")), " (0 cached)")) << r.out;
}

TEST(Program, CtrlCStopsTheAnswerAndNotTheProgram) {
  Terminal t({"chat", "--temp", "0", "-c", "8192", "-t", "1"});
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  t.type("Count from 1 to 900.\n");
  ASSERT_TRUE(t.wait_for("1, 2, 3")) << t.seen();
  t.type("\x03");
  ASSERT_TRUE(t.wait_for("; stopped]")) << t.seen();
  ASSERT_TRUE(t.wait_for("> "));
  t.type("\x03");
  ASSERT_TRUE(t.wait_for("/exit")) << t.seen();
  t.type("Hello\n");
  ASSERT_TRUE(t.wait_for(" tok/s; prompt ")) << t.seen();
  t.type("/exit\n");
}

TEST(Program, GradesTheShippedModel) {
  const Ran r = shell("eval --kind tools");
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "40/40")) << r.out;
  EXPECT_EQ(shell("eval --set /nonexistent", true).rc, 1);
}

TEST(Program, TokensInTokensOut) {
  const TinyFile file;
  const TempDir dir;
  const auto ids = random_ids(50, 96, 3);
  const std::string in = dir.path() + "/in.i32", out = dir.path() + "/out.i32", logits = dir.path() + "/l.f32";
  std::ofstream(in, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), 200);
  EXPECT_EQ(shell("run -m " + file.path() + " --tokens " + in + " --temp 0 -n 12 --ignore-eos --out-tokens " + out).rc,
            0);
  EXPECT_EQ(std::filesystem::file_size(out), 48u);
  for (const char* chunk : {"1", "7", "50"}) {
    EXPECT_EQ(shell("logits -m " + file.path() + " --tokens " + in + " --out " + logits + chunk +
                    " --backend ref --chunk " + chunk)
                  .rc,
              0);
    EXPECT_EQ(std::filesystem::file_size(logits + chunk), 50u * 96 * 4);
  }
  EXPECT_EQ(system(("cmp -s " + logits + "1 " + logits + "7 && cmp -s " + logits + "1 " + logits + "50").c_str()), 0);
  const Ran text = shell("run -m " + file.path() + " -p hello", true);
  EXPECT_EQ(text.rc, 1);
  EXPECT_TRUE(has(text.out, "no_vocab")) << text.out;
}

// Other programs' names for it are refused, not ignored; so is a share that is none, and what judges exact attention.
TEST(Program, SparsePrefillIsAskedForByItsName) {
  for (const std::string option : {"--pflash", "--pflash-alpha 0.9", "--sparse-prefill 0", "--sparse-prefill 1.5",
                                   "--sparse-prefill often", "--sparse-prefill nan"}) {
    const Ran r = shell("run -p Hello -n 1 -c 256 " + option, true);
    EXPECT_EQ(r.rc, 2) << r.out;
    EXPECT_TRUE(has(r.out, option.substr(0, option.find(' ')))) << r.out;
  }
  const Ran both = shell("run -p Hello -n 1 -c 256 --sparse-prefill 0.9 --lockstep", true);
  EXPECT_EQ(both.rc, 1) << both.out;
  EXPECT_TRUE(has(both.out, "--lockstep: expected no --sparse-prefill")) << both.out;
  const std::string exact = shell("run -p Hello --temp 0 -n 8 -c 256 --sparse-prefill off").out;
  EXPECT_EQ(shell("run -p Hello --temp 0 -n 8 -c 256 --sparse-prefill 0.9").out, exact) << "a short prompt";
}

TEST(Program, BenchOfASparsePrompt) {
  const Ran r = shell("bench -c 2048 --depths 0 --widths 1 --prefill 1500 --keep 0.5 --runs 1 --backend cpu", false);
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "\"phase\":\"sparse\"") && has(r.out, "\"keep\":0.5")) << r.out;
}

// What another K/V type costs on a text: nothing if it is the same one, more if it is a coarser one.
TEST(Program, MeasuresPerplexityAndDivergence) {
  const TempDir dir;
  {
    std::ofstream text(dir.file("text"));
    for (int i = 1; i < 40; ++i) text << "Anna is " << i << " years old and counts to " << i + 1 << ". ";
  }
  const std::string eval = "eval --backend cpu --window 128 --text " + dir.file("text");
  const auto number = [](const std::string& out, const std::string& behind) {
    const size_t at = out.find(behind);
    EXPECT_NE(at, std::string::npos) << out;
    return at == std::string::npos ? -1 : std::atof(out.c_str() + at + behind.size());
  };
  // Of the reference: activations in 8 bits move the perplexity of such a text by more than f16 does.
  const std::string ref = "eval --backend ref --window 128 --text " + dir.file("text");
  const double exact = number(shell(ref + " --kv-k f32 --kv-v f32").out, "perplexity ");
  EXPECT_GT(exact, 1);
  EXPECT_LT(exact, 20000);
  EXPECT_NEAR(number(shell(ref + " --kv-k f16 --kv-v f16").out, "perplexity "), exact, .01 * exact);
  const std::string same = shell(eval + " --against-kv f16").out;
  EXPECT_EQ(number(same, "KL mean "), 0) << same;
  EXPECT_EQ(number(same, "same top token "), 100) << same;
  const double fine = number(shell(eval + " --kv-k q8_0 --kv-v q8_0 --against-kv f32").out, "KL mean "),
               coarse = number(shell(eval + " --kv-k tq3_0 --kv-v tq3_0 --against-kv f32").out, "KL mean ");
  EXPECT_GT(fine, 0);
  EXPECT_GT(coarse, 4 * fine);
}

// Ids that are none of the model's, and as many as no argument list holds.
TEST(Program, TokenFilesThatAreNoPrompts) {
  const TinyFile file;
  const TempDir dir;
  const auto write = [&](const std::vector<int32_t>& ids) {
    std::ofstream(dir.file("in.i32"), std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), std::streamsize(4 * ids.size()));
  };
  const auto says = [&](const std::string& command) {
    const Ran r = shell(command + " -m " + file.path() + " --tokens " + dir.file("in.i32"), true);
    EXPECT_EQ(r.rc, 1) << command;
    const size_t error = r.out.find("facet: ");  // behind a line about memory
    EXPECT_EQ(lines(r.out.substr(std::min(error, r.out.size()))), 1) << r.out;
    return r.out;
  };
  for (const std::string& command : {std::string("run -n 1"), "logits --out " + dir.file("l.f32")}) {
    for (const int32_t id : {-1, 96, INT32_MIN, INT32_MAX}) {
      write({5, 9, id, 5});
      EXPECT_TRUE(has(says(command), "in.i32: token 2: expected an id in [0, 96), found " + std::to_string(id)));
    }
    write({});
    EXPECT_TRUE(has(says(command), "expected int32 token ids, little endian, found 0 bytes"));
  }
  std::vector<int32_t> many(262144, 7);
  write(many);
  EXPECT_TRUE(has(says("run -n 1 -c 4096"), "262144")) << "read whole, and refused for the context alone";
  many.back() = 96;
  write(many);
  EXPECT_TRUE(has(says("run -n 1 -c 4096"), "token 262143: expected an id in [0, 96), found 96"));
}

TEST(Program, ADrafterThatIsNotThereIsOneLine) {
  const TinyFile file;
  for (const std::string kind : {"mtp", "dflash"}) {
    const Ran r = shell("run -m " + file.path() + " --tokens /dev/null --draft " + kind, true);
    EXPECT_EQ(r.rc, 1);
    EXPECT_TRUE(has(r.out, "--draft " + kind + ": expected a drafter that fits " + file.path())) << r.out;
    EXPECT_TRUE(has(r.out, "found none")) << r.out;
    EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
  }
}

TEST(Program, FailuresAreOneLineThatSaysWhatToDo) {
  const TempDir dir;
  const std::string junk = dir.path() + "/junk.gguf", odd = dir.path() + "/odd.i32";
  std::ofstream(junk) << "this is not a model";
  std::ofstream(odd) << "12345";
  struct {
    std::string args;
    int code;
    std::string part;
  } cases[] = {{"run -m /nonexistent.gguf -p x", 1, "/nonexistent.gguf"},
               {"run -m " + junk + " -p x", 1, "GGUF"},
               {"run --tokens " + odd, 1, "int32"},
               {"run", 2, "-p or --tokens"},
               {"run -p x --temp banana", 2, "--temp"},
               {"run -p x --kv-k q9_9", 2, "q9_9"},
               {"frobnicate", 2, ""},
               {"plan -c 16000000 --memory 1GB", 1, "would fit"},
               {"run -p x -c 4", 1, "larger -c"}};
  for (const auto& c : cases) {
    const Ran r = shell(c.args, true);
    EXPECT_EQ(r.rc, c.code) << c.args << ": " << r.out;
    EXPECT_TRUE(has(r.out, c.part)) << c.args << ": " << r.out;
  }
  EXPECT_EQ(shell("--version").rc, 0);
  for (const char* sub :
       {"chat", "run", "logits", "plan", "inspect", "synth", "tokenize", "detokenize", "render", "parse"})
    EXPECT_EQ(shell(std::string(sub) + " --help").rc, 0) << sub;
}

}  // namespace
}  // namespace facet::test
