#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/step.h"

namespace facet {

// Rows of a sequence for which the head runs. kGiven: out_row, one for each token, of whatever the step gathers from.
enum class Out : uint8_t { kNone, kLast, kAll, kButFirst, kGiven };

// One sequence's part of a step.
struct SeqStep {
  int slot = 0;
  int kv_len = 0;
  std::span<const int32_t> token;
  Out out = Out::kNone;
  Mask mask = Mask::kCausal;
  std::span<const int32_t> out_row = {};  // kGiven
  std::span<const int16_t> parent = {};   // kTree: parent[i] < i, parent[0] = -1
  int n_select = 0;                       // Step::n_select; 0 for kSmallT tokens or fewer
  std::span<const int32_t> soft = {};     // Step::soft of each token; empty: no soft ones
  std::span<const int32_t> ahead = {};    // Step::ahead of each token; empty: 0
  int pos = -1;  // position of all tokens (kPast heads); -1: kv_len + index, or + depth in a tree
};

// Fills the arrays of a Step: requests in, plain data out. Owns the arrays; the Step stays valid until the next
// begin().
class StepBuilder {
 public:
  StepBuilder(int max_tok, int max_seq, int margin);  // margin: of the rings, for StepShape::staged
  void begin();
  void add(const SeqStep& q);  // those of at most kSmallT tokens first
  void pad_to(int n_tok);      // padding rows, seq = -1
  const Step& finish();
  int max_tok() const { return int(max_tok_); }
  int n_tok() const { return int(token_.size()); }
  void select(const SelectSpec& how) { step_.select = how; }  // of sequences with n_select
  int n_out() const { return int(out_row_.size()); }

 private:
  size_t max_tok_, max_seq_;
  int margin_;
  std::vector<int32_t> token_, pos_, seq_, q_begin_, kv_len_, slot_, out_row_, n_select_, soft_, ahead_;
  std::vector<Mask> mask_;
  std::vector<uint64_t> ancestor_;
  Step step_;
  int longest_ = 0, most_tok_ = 0, n_small_ = 0, n_blocks_ = 0, n_path_ = 0;
  int n_long_ = 0, n_soft_ = 0;
  int64_t long_rows_ = 0;
  bool any_select_ = false, any_ahead_ = false;
};

}  // namespace facet
