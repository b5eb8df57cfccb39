#pragma once
#include <string>

#include "base/result.h"

namespace facet {

// open_regular() of a file that lies in a folder of ours: a link in its place, which somebody else may have made, is
// refused.
Result<int> open_own(const std::string& path);

}  // namespace facet
