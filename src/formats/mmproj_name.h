#pragma once
#include <string_view>

// What names of mmproj files say: publishers have several of them beside a model. A name is a hint; content decides.
namespace facet {

bool is_mmproj_name(std::string_view path);
// 0: named like the model, 1: like none, 2: like another one.
int mmproj_name_rank(std::string_view path, std::string_view model_path);

}  // namespace facet
