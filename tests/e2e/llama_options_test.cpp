// Command lines as people have them for llama-server and llama-cli: every option is taken, mapped, or named with what
// to use here.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "app/aliases.h"
#include "app/commands.h"
#include "app/llama_options.h"

namespace facet {
namespace {

struct Theirs {
  char who = 0;
  std::vector<std::string> names = {}, values = {};
};

std::vector<std::string> words(const std::string& s) {
  std::istringstream in(s);
  std::vector<std::string> out;
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

std::vector<Theirs> list() {
  std::ifstream in(FACET_TEST_DATA "/llama_options.tsv");
  std::vector<Theirs> out;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    const size_t a = line.find('\t'), b = line.find('\t', a + 1);
    const std::string value = line.substr(b + 1);
    Theirs t{.who = line[0], .names = words(line.substr(a + 1, b - a - 1))};
    if (t.names[0] == "--control-vector-layer-range")
      t.values = words(value);
    else if (!value.empty())
      t.values = {value};
    out.push_back(std::move(t));
  }
  return out;
}

// What comes of a command line: words in the order typed, or what is wrong.
struct Outcome {
  std::string words = {}, error = {}, notes = {};
};
Outcome outcome(std::vector<std::string> args) {
  static CLI::App& app = *new CLI::App;  // not destroyed: what its callbacks hold may be gone at the end
  static int rc = -1;
  if (std::exchange(rc, 0) < 0) {
    app.require_subcommand(1);
    add_commands(app, rc);
    for (const char* name : {"serve", "run", "chat"}) app.get_subcommand(name)->callback(std::function<void()>());
  }
  std::vector<const char*> argv = {"facet"};
  for (const std::string& a : args) argv.push_back(a.c_str());
  testing::internal::CaptureStderr();
  auto own = with_own_names(app, int(argv.size()), argv.data());
  Outcome o{.notes = testing::internal::GetCapturedStderr()};
  if (!own) {
    o.error = own.error().message();
    return o;
  }
  for (auto w = own->rbegin(); w != own->rend(); ++w) o.words += (o.words.empty() ? "" : " ") + *w;
  try {
    app.parse(std::move(*own));
  } catch (const CLI::CallForHelp&) {
  } catch (const CLI::ExtrasError&) {
    o.error = unexpected_arguments(app);
  } catch (const CLI::ParseError& e) {
    o.error = e.what();
  }
  return o;
}
std::string words_of(std::vector<std::string> args) {
  const Outcome o = outcome(std::move(args));
  return o.error.empty() ? o.words : "error: " + o.error;
}

TEST(LlamaOptions, EachIsTakenMappedOrNamed) {
  std::set<std::string> seen;
  for (const Theirs& t : list())
    for (const std::string& name : t.names) {
      EXPECT_TRUE(seen.insert(name).second) << name << " is listed twice";
      for (const char* command : {"serve", "run", "chat"}) {
        const bool server = std::string(command) == "serve";
        if ((t.who == 's' && !server) || (t.who == 'c' && server)) continue;
        std::vector<std::string> args = {command};
        if (std::string(command) == "run") args.insert(args.end(), {"-p", "x"});  // --think wants one
        if (name == "-hff" || name == "--hf-file") args.insert(args.end(), {"-hf", "u/r"});
        args.push_back(name);
        args.insert(args.end(), t.values.begin(), t.values.end());
        if (server) args.insert(args.end(), {"--queue", "7"});  // what follows is read as it should be
        const Outcome o = outcome(args);
        EXPECT_EQ(o.error.find("not expected"), std::string::npos) << command << " " << name << ": " << o.error;
        const LlamaOption* theirs = find_llama_option(name);
        if (!o.error.empty() && theirs && theirs->kind == LlamaOption::Kind::kError) {
          EXPECT_TRUE(o.error.starts_with(name + ": ")) << o.error;
          EXPECT_GT(o.error.size(), name.size() + 10) << o.error;
          EXPECT_EQ(o.error.find("secret"), std::string::npos) << o.error;
          continue;
        }
        if (name == "--api-key") {
          EXPECT_NE(o.error.find("--api-key-file"), std::string::npos) << o.error;
          continue;
        }
        if (name == "--seed" || (name == "-s" && std::string(command) != "chat")) {  // -1 is what an omitted one is
          EXPECT_EQ(o.words.find("-1"), std::string::npos) << o.words;
        }
        // What is wrong with a value is CLI's to say; here the values are right.
        EXPECT_EQ(o.error, "") << command << " " << name;
        if (server) {
          EXPECT_TRUE(o.words.ends_with("--queue 7")) << o.words;
        }
        if (name.starts_with("--") && t.values.size() == 1 && !theirs) continue;
        // --opt=value is the same.
        if (name.starts_with("--") && t.values.size() == 1 && theirs->kind == LlamaOption::Kind::kAs) {
          std::vector<std::string> joined(args.begin(), args.end() - (server ? 3 : 1));
          joined.back() += "=" + t.values[0];
          if (server) joined.insert(joined.end(), {"--queue", "7"});
          EXPECT_EQ(words_of(joined), o.words);
        }
      }
    }
  EXPECT_GT(seen.size(), 300u);
}

TEST(LlamaOptions, ValuesMeanTheSame) {
  EXPECT_EQ(words_of({"serve", "-np", "8", "-cb", "-fa", "on", "--jinja", "--no-mmap", "-b", "2048", "-ub", "256",
                      "--metrics", "--reasoning", "on", "-ngl", "99"}),
            "serve --parallel 8 --chunk 256 --think --backend auto");
  EXPECT_EQ(words_of({"serve", "-fa", "--reasoning", "off", "-c", "512"}), "serve -c 512");
  EXPECT_EQ(words_of({"serve", "--reasoning=auto", "--cache_type_k=q8_0"}), "serve --kv-k q8_0");
  EXPECT_EQ(words_of({"serve", "-ngl", "0"}), "serve --backend cpu");
  EXPECT_EQ(words_of({"serve", "-ncmoe", "12", "-ncffn", "3"}), "serve --experts-on-cpu 12 --ffn-on-cpu 3");
  EXPECT_EQ(words_of({"serve", "--cpu-moe"}), "serve --experts-on-cpu all");
  EXPECT_EQ(words_of({"serve", "-ot", "\\.ffn_.*_exps\\.=CPU"}), "serve --experts-on-cpu all");
  for (const char* other : {"blk\\.1.*exps=CPU", "attn_q=CPU", "exps=CUDA0", "exps"})
    EXPECT_NE(words_of({"serve", "-ot", other}).find("--experts-on-cpu N"), std::string::npos) << other;
  EXPECT_EQ(words_of({"serve", "-dev", "CUDA0,CUDA2"}), "serve --gpus 0,2");
  EXPECT_EQ(words_of({"serve", "-dev", "CUDA1"}), "serve --gpu 1");
  EXPECT_NE(words_of({"serve", "-dev", "Vulkan0"}).find("facet doctor"), std::string::npos);
  EXPECT_EQ(words_of({"serve", "-np", "-1", "--cache-ram", "-1", "--seed", "-1", "-t", "-1"}), "serve");
  EXPECT_EQ(words_of({"serve", "--cors-origins", "https://a,https://b"}),
            "serve --cors-origin https://a --cors-origin https://b");
  EXPECT_EQ(words_of({"serve", "--draft", "5"}), "serve --draft-max 5");
  EXPECT_EQ(words_of({"serve", "--spec-type", "draft-mtp,ngram-mod"}), "serve --draft mtp --draft suffix");
  EXPECT_EQ(words_of({"serve", "-hfd", "u/r"}), "serve --draft hf:u/r");
  EXPECT_EQ(words_of({"serve", "--sse-ping-interval", "-1", "--sleep-idle-seconds", "-1"}),
            "serve --ping 86400 --sleep-idle 0");
  EXPECT_EQ(words_of({"serve", "--mirostat", "0", "--dry-multiplier", "0.0"}), "serve");
  EXPECT_NE(words_of({"serve", "--mirostat", "2"}).find("--mirostat: "), std::string::npos);
  EXPECT_EQ(words_of({"serve", "--chat-template-kwargs", "{\"enable_thinking\":false}"}), "serve");
  EXPECT_NE(words_of({"serve", "--chat-template-kwargs", "{\"a\":1}"}).find("error"), std::string::npos);
  EXPECT_EQ(words_of({"chat", "-sys", "be brief", "-cnv"}), "chat --system be brief");
  // A value is no option, whatever it looks like.
  EXPECT_EQ(words_of({"run", "-p", "--jinja"}), "run -p --jinja");
  EXPECT_EQ(words_of({"run", "-p=--jinja"}), "run -p=--jinja");
}

// A megabyte and a byte are not the same.
TEST(LlamaOptions, CacheRamIsInMebibytes) {
  for (const auto& [given, want] : std::vector<std::pair<std::string, std::string>>{
           {"4096", "4294967296"}, {"4096MB", "4294967296"}, {"8GB", "8589934592"}, {"0", "0"}, {"100b", "100"}}) {
    CLI::App app;
    int rc = 0;
    add_commands(app, rc);
    app.get_subcommand("serve")->callback(std::function<void()>());
    app.parse(std::vector<std::string>{given, "--cache-ram", "serve"});
    EXPECT_EQ(app.get_subcommand("serve")->get_option("--cache-ram")->results(), std::vector<std::string>{want})
        << given;
  }
}

TEST(LlamaOptions, MessagesAreInTheOrderTyped) {
  EXPECT_EQ(words_of({"serve", "--lora", "a", "-c", "512", "--rpc", "b"}).find("error: --lora: "), 0u);
  const std::string both = words_of({"serve", "--lora", "a", "--rpc", "b"});
  EXPECT_LT(both.find("--lora: "), both.find("--rpc: "));
  EXPECT_EQ(words_of({"serve", "--first", "1", "--second"}),
            "error: The following arguments were not expected: --first 1 --second");
  const std::string notes = outcome({"serve", "--metrics", "-np", "2", "--jinja"}).notes;
  EXPECT_LT(notes.find("--metrics"), notes.find("-np"));
  EXPECT_LT(notes.find("-np"), notes.find("--jinja"));
}

}  // namespace
}  // namespace facet
