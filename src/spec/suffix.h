#pragma once
#include <array>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

#include "base/check.h"
#include "spec/suffix_index.h"

// What comes next, out of what was said before: the tokens that followed the same tokens elsewhere, as a tree with the
// chance of each of its nodes.
namespace facet {

class AnswerMemory;

// Where the next token may be copied from.
struct CopySource {
  enum Kind : uint8_t { kFar, kNear, kRemembered };  // kNear: by a cursor; kRemembered: in an earlier answer
  int32_t place = 0;                                 // of the token that would come next
  int16_t length = 0;                                // tokens before it that are the same, at most kMostLength
  Kind kind = kFar;
  float weight = 1;  // against others of its class
};

// How often sources of a class have the right token where better classes had not, learned from an answer as it goes by,
// verified or not. An answer begins with what is usual: so what is drafted in it depends on its tokens alone, and on
// nothing that was said to others or before it was restored.
class CopyTrust {
 public:
  // By kind, by length, and by how far those sources agree which are as long or longer: one alone, all of them, some,
  // none of them.
  static constexpr int kKinds = 3, kLengths = 10, kAgreements = 4, kClasses = kKinds * kLengths * kAgreements;
  static int length_class(int length);
  static int agreement(int sources, int distinct);
  static int class_of(CopySource::Kind kind, int length_class, int agreement) {
    return (int(kind) * kLengths + length_class) * kAgreements + agreement;
  }
  double value(int of_class) const;
  void observe(int of_class, bool right);

 private:
  struct Known {
    double hit = 0, trial = 0;
  };
  std::array<Known, kClasses> known_{};
};

// Where the text was copied from lately, the newest place first: what is copied next is often near. Where a text
// changes between two sources, such as the frame of a table and its data, there is one for each.
class CopyCursors {
 public:
  static constexpr int kMost = 4, kBack = 24, kAhead = 64;  // tokens before and behind a cursor that are near
  void touch(int32_t place);
  void clear() { n_ = 0; }
  std::span<const int32_t> places() const { return {at_.data(), size_t(n_)}; }
  // How near a place is to a cursor, at most 1; 0: to none. Behind a cursor counts less than before it, and a cursor
  // that was used long ago less than a newer one.
  float nearness(int32_t place) const;

 private:
  std::array<int32_t, kMost> at_{};
  int n_ = 0;
};

// A draft: node 0 is the newest token, parents come before children, and nodes in the order of their chances, so that
// the first n are the likeliest tree of n.
struct CopyTree {
  std::vector<int32_t> token;
  std::vector<int16_t> parent;
  std::vector<float> chance;  // that the node is on the path of the text; 1 for node 0
  int n_draft() const { return int(token.size()) - 1; }
  void start(int32_t newest) { token.assign(1, newest), parent.assign(1, -1), chance.assign(1, 1.f); }
};

// What was guessed of a sequence, until the text says what was right.
struct CopyRecord {
  struct Level {
    int of_class, begin, end;  // tokens that sources of the class have
  };
  struct Node {
    int32_t token;
    int16_t parent, depth;
    int begin, end;                        // sources
    int level_begin, level_end;            // best class first; equal: it was not looked at
    int16_t first_child = 0, sibling = 0;  // 0: none
    float chance;
  };
  size_t n_history = 0;  // tokens at the time; 0: nothing was guessed
  std::vector<Node> nodes;
  std::vector<CopySource> sources;
  std::vector<Level> levels;
  std::vector<int32_t> tokens;
  void clear() { n_history = 0, nodes.clear(), sources.clear(), levels.clear(), tokens.clear(); }
};

// Guesses of one engine. A round costs a bounded number of looks, whatever the length of the history.
class CopyGuesser {
 public:
  static constexpr float kLeastChance = .01f;  // of a node
  struct Limits {
    int nodes = 0;         // beside node 0
    int depth = 0;         // tokens on a path
    bool branches = true;  // false: a chain
  };
  // index: of this history. memory: answers of earlier requests of the same owner; null: none.
  void guess(std::span<const int32_t> history, const SuffixIndex& index, const AnswerMemory* memory,
             const CopyCursors& cursors, Limits limits, CopyRecord& record, CopyTree& out);
  // What goes on behind a draft of another drafter, as a chain: `tail` is the end of the history with the draft.
  void go_on(std::span<const int32_t> history, std::span<const int32_t> tail, const SuffixIndex& index,
             const CopyCursors& cursors, int nodes, CopyTree& out);
  // The history goes on from where the record was made.
  void learn(std::span<const int32_t> history, CopyRecord& record, CopyCursors& cursors);
  // Of the answer that the next calls are about. It outlives them.
  void use(CopyTrust& trust) { trust_ = &trust; }

 private:
  struct Child {
    float chance;
    int32_t token;
    int16_t parent;
    bool operator<(const Child& o) const { return chance < o.chance; }
  };
  struct Vote {
    int32_t token;
    float weight;
  };
  struct Group {
    int of_class, begin, end;  // votes
    double trust;
  };
  int32_t token_at(const CopyRecord& r, int node, const CopySource& s) const;
  void find_sources(const SuffixIndex& index, const CopyCursors& cursors, CopyRecord& r);
  void grow(CopyRecord& r, CopyTree& out);
  void vote(const CopyRecord& r, int node);
  void expand(CopyRecord& r, int node);
  int add_node(CopyRecord& r, const Child& c);

  CopyTrust own_;
  CopyTrust* trust_ = &own_;
  std::span<const int32_t> history_;
  const AnswerMemory* memory_ = nullptr;
  Limits limits_;
  bool loops_ = true;  // a source may run into the draft itself
  CopyRecord behind_;  // of go_on()
  std::vector<SuffixIndex::Match> matches_;
  std::vector<int32_t> seen_;
  std::vector<int8_t> bucket_;
  std::vector<Vote> votes_;
  std::vector<Group> groups_;
  std::priority_queue<Child> open_;
};

}  // namespace facet
