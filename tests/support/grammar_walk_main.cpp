// facet_grammar_walk SCHEMAS.jsonl ANSWERS_PER_SCHEMA: for each line {"schema": ...} random answers under masks, each a
// line
// {"schema": index, "text": ..., "ended": ...} on stdout; for a schema that does not compile {"schema": index, "error":
// ...}. With a third argument "call" the answers are arguments of a tool call, given back as the JSON that the parser
// makes of them.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "grammar/tool_calls.h"
#include "support/grammar_walk.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/json.h"

int main(int argc, char** argv) {
  using namespace facet;
  if (argc < 3) return 2;
  const bool call = argc > 3 && std::string(argv[3]) == "call";
  const test::SmallVocab v = test::small_vocab({"{\"",
                                                "\": ",
                                                "\": \"",
                                                "\", \"",
                                                "\",",
                                                "\"}",
                                                "\"]",
                                                "}}",
                                                "]}",
                                                "[]",
                                                "{}",
                                                "true",
                                                "false",
                                                "null",
                                                "the",
                                                " quick",
                                                "name",
                                                "10",
                                                "123",
                                                "-1",
                                                ".5",
                                                ", ",
                                                "\n  ",
                                                "\n    ",
                                                "abc",
                                                "\xC3\xA9",
                                                "\xE4\xB8\xAD",
                                                "\xF0\x9F\x98\x80",
                                                "\\n",
                                                "\\u00e9",
                                                "\\ud83d\\ude00",
                                                "2024-02-29"});
  GrammarMasks masks(v.vocab);
  std::ifstream in(argv[1]);
  std::mt19937 rng(11);
  std::string line;
  for (int index = 0; std::getline(in, line); ++index) {
    const Json schema = Json::parse(line)["schema"];
    Result<GrammarPtr> made = Error{};
    if (call) {
      const std::vector<Json> tools{Json{{"name", "f"}, {"parameters", schema}}};
      ToolGrammarOptions options;
      options.parallel = false;
      made = compile_tool_calls(tools, options);
    } else {
      made = compile_json_schema(schema);
    }
    if (!made) {
      std::puts(dump_json(Json{{"schema", index}, {"error", made.error().message()}}).c_str());
      continue;
    }
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
      std::string text;
      bool ended = false;
      if (!test::random_answer(masks, GrammarState(*made), rng, int(rng() % 60), 3000, text, ended)) {
        std::puts(dump_json(Json{{"schema", index}, {"error", "stuck after " + text}}).c_str());
        continue;
      }
      if (call && ended) {
        const ParsedMessage m = parse_chat(text);
        if (m.tool_calls.size() != 1 || !m.content.empty()) {
          std::puts(dump_json(Json{{"schema", index}, {"error", "not one call: " + text}}).c_str());
          continue;
        }
        text = m.tool_calls[0].arguments;
      }
      std::puts(dump_json(Json{{"schema", index}, {"text", text}, {"ended", ended}}).c_str());
    }
  }
  return 0;
}
