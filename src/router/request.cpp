#include "router/request.h"

#include <algorithm>

#include "server/info.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr size_t kMaxDepth = 100, kMaxNameBytes = 512;

// Keeps what is directly in the outermost object. An array there is an error.
class FieldReader : public nlohmann::json_sax<Json> {
 public:
  RoutedFields fields = {};
  std::string problem = {};

  bool null() override { return value(); }
  bool boolean(bool v) override {
    if (depth_ == 1) {
      if (key_ == "stream") fields.stream = v;
      if (key_ == "return_progress") fields.progress = v;
      if (key_ == "wait") fields.wait = v;
      if (key_ == "autoload") fields.autoload = v;
    }
    return value();
  }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t& v) override {
    if (depth_ == 1 && key_ == "model") {
      if (v.size() > kMaxNameBytes) return fail("model: expected the name of a model, found a long text");
      fields.model = v;
      named_ = true;
    }
    return value();
  }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(false); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (depth_ == 1) key_ = k.size() <= 32 ? k : "";
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return fail("malformed JSON at byte " + std::to_string(at));
  }

 private:
  bool fail(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  // Any value but a text ends what an earlier member of the name said.
  bool value() {
    if (depth_ == 0) return fail("expected a JSON object");
    if (depth_ == 1 && key_ == "model" && !std::exchange(named_, false)) return not_a_name();
    return true;
  }
  bool not_a_name() { return fail("model: expected the name of a model"); }
  bool open(bool object) {
    if (depth_ == 0 && !object) return fail("expected a JSON object");
    if (depth_ == 1 && key_ == "model") return not_a_name();
    if (++depth_ > kMaxDepth) return fail("the JSON is nested too deeply");
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  size_t depth_ = 0;
  std::string key_ = {};
  bool named_ = false;
};

}  // namespace

Result<RoutedFields> read_routed_fields(std::string_view body) {
  FieldReader reader;
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return reader.fields;
  if (!Json::sax_parse(body.begin(), body.end(), &reader))
    return Error{"", reader.problem.empty() ? "malformed JSON" : reader.problem, ""};
  return reader.fields;
}

std::string query_field(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    const size_t eq = std::min(field.find('='), field.size());
    if (field.substr(0, eq) == key) return percent_decoded(field.substr(std::min(field.size(), eq + 1)));
  }
  return "";
}

std::string stream_error(Dialect dialect, const ApiError& e) {
  const std::string body = dump_json(error_json(dialect, e));
  if (dialect == Dialect::kOllama) return body + "\n";
  return (dialect == Dialect::kAnthropic ? "event: error\ndata: " : "data: ") + body + "\n\n";
}

}  // namespace facet
