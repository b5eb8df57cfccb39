// The router's pure parts: names and options of models, preset files, what it reads of a body, merged metrics; and
// sockets that go from one process to another.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pass_socket.h"
#include "router/config.h"
#include "router/report.h"
#include "router/request.h"

namespace facet {
namespace {

class Known final : public ServeOptions {
 public:
  std::string long_name(const std::string& n) const override {
    if (n == "c") return "ctx-size";
    for (const char* name : {"ctx-size", "parallel", "kv-k", "cache-ram", "think", "port"})
      if (n == name) return n;
    return "";
  }
  bool is_flag(const std::string& n) const override { return n == "think"; }
};

std::vector<std::string> line_of(std::vector<ModelOption> options) {
  ModelConfig m;
  std::vector<std::string> notes;
  for (const ModelOption& o : options) {
    const auto ok = apply_option(m, o, Known(), notes);
    if (!ok) return {"error", ok.error().what};
  }
  return command_line(m);
}
using Words = std::vector<std::string>;

TEST(RouterConfig, ModelArguments) {
  ModelConfig m;
  std::vector<ModelOption> o;
  ASSERT_TRUE(parse_model_argument("nano=/a,B/c=d.gguf,pinned,ctx-size=5,draft=x,Y.gguf", m, o));
  EXPECT_EQ(m.name, "nano");
  EXPECT_EQ(m.path, "/a,B/c=d.gguf");  // a comma is part of a path unless what follows reads like an option
  ASSERT_EQ(o.size(), 3u);
  EXPECT_EQ(o[0].name + "=" + o[0].value, "pinned=");
  EXPECT_EQ(o[1].name + "=" + o[1].value, "ctx-size=5");
  EXPECT_EQ(o[2].name + "=" + o[2].value, "draft=x,Y.gguf");
  for (const char* path : {"model.gguf", "/a/b=c.gguf", "=x", "a b=c"}) EXPECT_FALSE(parse_model_argument(path, m, o));
}

TEST(RouterConfig, OptionsReplaceOneAnother) {
  EXPECT_EQ(line_of({{"c", "1"}, {"LLAMA_ARG_CTX_SIZE", "2"}, {"np", "3"}}), (Words{"--ctx-size=2", "--parallel=3"}));
  EXPECT_EQ(line_of({{"think", "true"}}), Words{"--think"});
  EXPECT_EQ(line_of({{"think", ""}, {"think", "false"}}), Words{});
  EXPECT_EQ(line_of({{"ctk", "q8_0"}, {"jinja", "true"}}), Words{"--kv-k=q8_0"});
  EXPECT_EQ(line_of({{"cache-ram", "5", "", true}}), Words{"--cache-ram=5MB"});
  EXPECT_EQ(line_of({{"cache-ram", "5"}}), Words{"--cache-ram=5"});
  EXPECT_EQ(line_of({{"no-such", "5"}})[0], "error");
  EXPECT_EQ(line_of({{"port", "5"}})[0], "error");
  EXPECT_EQ(line_of({{"think", "perhaps"}})[0], "error");
  EXPECT_EQ(line_of({{"c", ""}})[0], "error");
}

TEST(RouterConfig, Presets) {
  const auto s = parse_preset("version = 1\n\n[*]\r\nc = 5 ; words\n[ \"a ] b\" ] # x\npath=\"x # \\\"y\\\"\"\n", "f");
  ASSERT_TRUE(s);
  ASSERT_EQ(s->size(), 3u);
  EXPECT_EQ((*s)[1].name, "*");
  EXPECT_EQ((*s)[1].options[0].value, "5");
  EXPECT_EQ((*s)[2].name, "a ] b");
  EXPECT_EQ((*s)[2].options[0].value, "x # \"y\"");
  EXPECT_EQ((*s)[2].options[0].where, "f line 6");
  for (const char* bad : {"[a", "[]", "[a]\n[a]", "x", "= 5", "a = \"x", "a = \"x\" y", "a = \"\\n\""})
    EXPECT_FALSE(parse_preset(bad, "f")) << bad;
}

TEST(RouterRequest, FieldsOfABody) {
  const auto f = read_routed_fields(R"({"a": {"model": "x"}, "model": "y", "model": "z", "stream": true, "b": [1]})");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->model, "z");
  EXPECT_TRUE(f->stream);
  EXPECT_TRUE(read_routed_fields("")->model.empty());
  for (const std::string& bad : {std::string("[1]"), std::string("7"), std::string("{\"model\": 7}"),
                                 std::string("{\"model\": [\"x\"]}"), std::string("{\"model\": "),
                                 "{\"a\":" + std::string(200, '['), "{\"model\": \"" + std::string(600, 'x') + "\"}"})
    EXPECT_FALSE(read_routed_fields(bad)) << bad.substr(0, 30);
  EXPECT_EQ(query_field("a=b&model=x%2Fy", "model"), "x/y");
  EXPECT_EQ(query_field("xmodel=1", "model"), "");
}

TEST(RouterReport, MetricsOfSeveralModels) {
  const char* text =
      "# HELP a_s x y\n# TYPE a_s histogram\na_s_bucket{le=\"1\"} 2\na_s_sum 3\n# HELP b z\n# TYPE b gauge\nb 1\n";
  MetricsMerge m;
  m.add(text, "p");
  m.add(text, "q");
  EXPECT_EQ(m.text(),
            "# HELP a_s x y\n# TYPE a_s histogram\na_s_bucket{model=\"p\",le=\"1\"} 2\na_s_sum{model=\"p\"} 3\n"
            "a_s_bucket{model=\"q\",le=\"1\"} 2\na_s_sum{model=\"q\"} 3\n"
            "# HELP b z\n# TYPE b gauge\nb{model=\"p\"} 1\nb{model=\"q\"} 1\n");
}

TEST(PassSocket, OneOrNoneOrTheEnd) {
  int link[2], pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, link), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(receive_socket(link[1]).state, ReceivedSocket::State::kNone);
  ASSERT_EQ(::send(link[0], "words", 5, 0), 5);  // a packet without one is passed over
  ASSERT_TRUE(send_socket(link[0], pair[0]));
  const auto got = receive_socket(link[1]);
  ASSERT_EQ(got.state, ReceivedSocket::State::kOne);
  ASSERT_EQ(::write(got.fd, "x", 1), 1);
  char c = 0;
  EXPECT_EQ(::read(pair[1], &c, 1), 1);
  ::close(link[0]);
  EXPECT_EQ(receive_socket(link[1]).state, ReceivedSocket::State::kEnded);
  EXPECT_FALSE(send_socket(link[1], pair[0]));
  for (const int fd : {link[1], pair[0], pair[1], got.fd}) ::close(fd);
}

}  // namespace
}  // namespace facet
