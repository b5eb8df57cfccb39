#include "backend/step_builder.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace facet {

StepBuilder::StepBuilder(int max_tok, int max_seq, int margin)
    : max_tok_(size_t(max_tok)), max_seq_(size_t(max_seq)), margin_(margin) {
  for (auto* v : {&token_, &pos_, &seq_, &out_row_, &soft_, &ahead_}) v->reserve(max_tok_);
  for (auto* v : {&q_begin_, &kv_len_, &slot_, &n_select_}) v->reserve(max_seq_ + 1);
  mask_.reserve(max_seq_);
  ancestor_.reserve(max_tok_);
}

void StepBuilder::begin() {
  for (auto* v : {&token_, &pos_, &seq_, &out_row_, &q_begin_, &kv_len_, &slot_, &n_select_, &soft_, &ahead_})
    v->clear();
  mask_.clear();
  ancestor_.clear();
  q_begin_.push_back(0);
  longest_ = most_tok_ = n_small_ = n_blocks_ = n_path_ = 0;
  n_long_ = 0, long_rows_ = 0;
  n_soft_ = 0;
  any_select_ = any_ahead_ = false;
}

void StepBuilder::add(const SeqStep& q) {
  const int n = int(q.token.size()), s = int(slot_.size()), base = int(token_.size());
  CHECK(n > 0 && token_.size() + size_t(n) <= max_tok_ && slot_.size() < max_seq_, "{} tokens after {} of {}", n, base,
        max_tok_);
  CHECK(q.out != Out::kGiven || q.out_row.size() == q.token.size(), "{} output rows for {} tokens", q.out_row.size(),
        n);
  CHECK(q.mask != Mask::kTree || (n <= kMaxTreeNodes && q.parent.size() == q.token.size()),
        "tree of {} nodes, {} parents", n, q.parent.size());
  CHECK((q.soft.empty() && q.ahead.empty()) ||
            (q.mask == Mask::kCausal && q.soft.size() == q.token.size() && q.ahead.size() == q.token.size()),
        "{} soft rows, {} ahead for {} tokens", q.soft.size(), q.ahead.size(), n);
  uint64_t inner = 0;  // nodes that are parents
  for (int j = 0; j < n; ++j) {
    uint64_t ancestor = 0;
    int pos = q.pos >= 0 ? q.pos : q.kv_len + j;
    if (q.mask == Mask::kTree) {
      const int parent = q.parent[size_t(j)];
      CHECK(parent < j && (parent >= 0) == (j > 0), "node {} has parent {}", j, parent);
      if (j > 0) inner |= uint64_t(1) << parent;
      ancestor = uint64_t(1) << j | (j > 0 ? ancestor_[size_t(base + parent)] : 0);
      pos = j > 0 ? pos_[size_t(base + parent)] + 1 : q.kv_len;
    }
    token_.push_back(std::max(q.token[size_t(j)], 0));  // below 0: a soft token, whose row in tables is that of <pad>
    pos_.push_back(pos);
    seq_.push_back(s);
    ancestor_.push_back(ancestor);
    soft_.push_back(q.soft.empty() ? -1 : q.soft[size_t(j)]);
    ahead_.push_back(q.ahead.empty() ? 0 : q.ahead[size_t(j)]);
    CHECK(ahead_.back() >= 0 && ahead_.back() < n - j, "token {} of {} sees {} ahead", j, n, ahead_.back());
    n_soft_ += soft_.back() >= 0;
    any_ahead_ |= ahead_.back() > 0;
    if (q.out == Out::kAll || (q.out == Out::kLast && j == n - 1) || (q.out == Out::kButFirst && j > 0))
      out_row_.push_back(base + j);
    if (q.out == Out::kGiven) out_row_.push_back(q.out_row[size_t(j)]);
  }
  if (n <= kSmallT && n_small_ == base) n_small_ = base + n;
  n_blocks_ = n >= kStreamBlock ? n_blocks_ + n : 0;
  q_begin_.push_back(base + n);
  kv_len_.push_back(q.kv_len);
  slot_.push_back(q.slot);
  mask_.push_back(q.mask);
  n_select_.push_back(q.mask == Mask::kCausal && n > kSmallT ? std::clamp(q.n_select, 0, n) : 0);
  any_select_ |= n_select_.back() > 0;
  longest_ = std::max(longest_, q.kv_len + n);
  if (n_small_ <= base) ++n_long_, long_rows_ += q.kv_len + n;
  if (q.mask != Mask::kPast) most_tok_ = std::max(most_tok_, n);
  if (q.mask == Mask::kTree && n <= kSmallT) n_path_ = std::max(n_path_, n - std::popcount(inner));
}

void StepBuilder::pad_to(int n_tok) {
  CHECK(size_t(n_tok) <= max_tok_, "padding to {} of {}", n_tok, max_tok_);
  while (int(token_.size()) < n_tok) {
    n_blocks_ = 0;
    token_.push_back(0);
    pos_.push_back(0);
    seq_.push_back(-1);
    ancestor_.push_back(0);
    soft_.push_back(-1);
    ahead_.push_back(0);
  }
}

const Step& StepBuilder::finish() {
  step_.shape = {.n_tok = int(token_.size()),
                 .n_seq = int(slot_.size()),
                 .n_out = int(out_row_.size()),
                 .n_small = n_small_,
                 .n_long = n_long_,
                 .n_blocks = n_blocks_,
                 .long_rows = most_tok_ > margin_ ? long_rows_ : 0,
                 .longest = longest_,
                 .n_path = n_path_,
                 .staged = most_tok_ > margin_,
                 .select = any_select_,
                 .n_soft = n_soft_,
                 .ahead = any_ahead_};
  step_.token = token_.data();
  step_.pos = pos_.data();
  step_.seq = seq_.data();
  step_.q_begin = q_begin_.data();
  step_.kv_len = kv_len_.data();
  step_.slot = slot_.data();
  step_.mask = mask_.data();
  step_.ancestor = ancestor_.data();
  step_.out_row = out_row_.data();
  step_.n_select = n_select_.data();
  step_.soft = soft_.data();
  step_.ahead = ahead_.data();
  return step_;
}

}  // namespace facet
