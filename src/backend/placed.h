#pragma once
#include <cstdint>
#include <span>
#include <type_traits>

#include "backend/backend.h"
#include "backend/compose.h"

// The verbs of a backend that is made of several, generated from verbs.def: each verb becomes one call of
//
//   place(verb, arguments...)      verb(backend, its own arguments...) runs the verb on one of them
//
// where rows come as Placed with the role that verbs.def gives them, and everything else as it is. TensorParallel and
// PipelineParallel say in place() on which backends the verb runs, what each argument is there, and what is noted
// afterwards. A verb that needs more hides the generated one by a member of the same name.
namespace facet {

enum class Role : uint8_t {
  kIn,         // read, all columns
  kLost,       // read, and anything afterwards
  kOut,        // written, all columns
  kInOut,      // read and written
  kInPart,     // read; columns are worked on apart from each other
  kInOutPart,  // read and written; columns are worked on apart from each other
  kOutLike,    // written, divided as other rows are
  kOutOf,      // written, a product with a weight
  kInOf,       // read, the input of that product
};
constexpr bool reads(Role r) { return r != Role::kOut && r != Role::kOutLike && r != Role::kOutOf; }
constexpr bool writes(Role r) { return r != Role::kIn && r != Role::kInPart && r != Role::kInOf; }

struct NoWith {};
// An argument that is rows. with: the weight or the rows that the role speaks of. used: false where OUT_IF leaves them.
template <Role role, class Rows, class With = NoWith>
struct Placed {
  static constexpr Role kRole = role;
  Rows rows{};
  With with{};
  bool used = true;
};
template <Role role, class Rows, class With = NoWith>
Placed<role, Rows, With> placed(const Rows& rows, const With& with = {}) {
  return {rows, with};
}
template <class Rows>
Placed<Role::kOut, Rows> placed_if(const Rows& rows, bool used) {
  return {rows, {}, used};
}
// The heads of an AttnSpec are those that a shard has of these rows.
template <class Rows>
struct PlacedHeads {
  AttnSpec spec;
  Rows rows;
};
template <class Rows>
PlacedHeads<Rows> placed_heads(const AttnSpec& spec, const Rows& rows) {
  return {spec, rows};
}

// Types: the associated types of the backend that is made, and Have, which says what merged and chained verbs it has.
// Self derives from it and has place().
template <class Self, class Types>
class PlacedVerbs {
 public:
  using Rows = typename Types::Rows;
  using Weight = typename Types::Weight;
  using Vec = typename Types::Vec;
  using Freqs = typename Types::Freqs;
  using KvLayer = typename Types::KvLayer;
  using Ids = typename Types::Ids;
  using Scores = typename Types::Scores;
  using Table = typename Types::Table;

#define IN(x) placed<Role::kIn>(x)
#define LOST(x) placed<Role::kLost>(x)
#define OUT(x) placed<Role::kOut>(x)
#define OUT_IF(x, used) placed_if(x, bool(used))
#define INOUT(x) placed<Role::kInOut>(x)
#define IN_PART(x) placed<Role::kInPart>(x)
#define INOUT_PART(x) placed<Role::kInOutPart>(x)
#define OUT_LIKE(x, other) placed<Role::kOutLike>(x, other)
#define OUT_OF(x, weight) placed<Role::kOutOf>(x, weight)
#define IN_OF(x, weight) placed<Role::kInOf>(x, weight)
#define HEADS_OF(spec, x) placed_heads(spec, x)
#define VERB(name, parameters, arguments, ...)                                                        \
  void name parameters {                                                                              \
    [&](const auto&... all) {                                                                         \
      static_cast<Self*>(this)->place([](auto& on, const auto&... own) { on.name(own...); }, all...); \
    } arguments;                                                                                      \
  }
// A part that has no such verb composes it.
#define MERGED(name, parameters, arguments, ...)                                                              \
  void name parameters requires(Types::Have::name) {                                                          \
    [&](const auto&... all) {                                                                                 \
      static_cast<Self*>(this)->place([](auto& on, const auto&... own) { facet::name(on, own...); }, all...); \
    } arguments;                                                                                              \
  }
#define CHAINED(name, parameters, arguments, ...)                                                     \
  void name parameters requires(Types::Have::name) {                                                  \
    [&](const auto&... all) {                                                                         \
      static_cast<Self*>(this)->place([](auto& on, const auto&... own) { on.name(own...); }, all...); \
    } arguments;                                                                                      \
  }
#include "backend/verbs.def"
};

// What a backend of several kinds of parts has: a merged verb if one part has it, no chained verb.
template <class... B>
struct HasMerged {
#define VERB(name, ...) static constexpr bool name = true;
#define MERGED(name, ...) static constexpr bool name = (Has<B>::name || ...);
#define CHAINED(name, ...) static constexpr bool name = false;
#include "backend/verbs.def"
};

}  // namespace facet
