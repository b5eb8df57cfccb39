#include "grammar/compile_budget.h"

#include <fmt/format.h>

namespace facet::grammar {

void CompileBudget::look() {
  if (spent_ > limits_.work)
    throw Stop{Error{place_,
                     fmt::format("expected at most {} units of work to compile the grammar (states and edges made, "
                                 "bytes compared), found more",
                                 limits_.work),
                     "use smaller counts and lengths, fewer alternatives, or $ref for what is repeated"}};
  if (limits_.interrupted())
    throw Stop{Error{place_, "compiling the grammar was ended before it was done", "ask again later"}};
  next_ = look_again();
}

}  // namespace facet::grammar
