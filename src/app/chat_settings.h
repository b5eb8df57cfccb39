#pragma once
#include <span>
#include <string>
#include <string_view>

#include "backend/sampling.h"
#include "base/result.h"

namespace facet {

// What /set changes: how the next answers are drawn, and how long they are.
struct ChatSettings {
  Sampling& sampling;
  int& n_predict;
};

std::span<const std::string_view> setting_names();
// "temp 0.7": within the bounds that the options of the command line have. Names of the APIs (temperature, top_k,
// max_tokens) are taken as well.
Status change_setting(ChatSettings s, const std::string& name, const std::string& value);
std::string settings_line(ChatSettings s);  // "temp 1, top-p 0.95, ..."

}  // namespace facet
