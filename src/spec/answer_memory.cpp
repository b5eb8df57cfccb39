#include "spec/answer_memory.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace facet {
namespace {

constexpr size_t kFirst = 1024;  // tokens for which a ring has memory at first

}  // namespace

size_t AnswerMemory::bytes() const {
  size_t n = token_.capacity() * sizeof(int32_t);
  for (const Chains& c : chains_) n += (c.head.capacity() + c.link.capacity()) * sizeof(uint32_t);
  return n;
}

// Twice the places, up to the limit. The ring has not come round yet.
void AnswerMemory::grow() {
  const size_t size = std::min(limit_, std::max(kFirst, 2 * token_.size()));
  token_.reserve(size);
  token_.resize(size, kEnd);
  for (Chains& c : chains_) {
    c.link.reserve(size);
    c.link.assign(size, kNone);
    c.head.assign(std::bit_floor(std::max<size_t>(2, size)), kNone);
  }
  for (uint32_t at = 0; at < written_; ++at) chain(at);
}

// Hangs up token number `at`, the newest so far. The tokens before it are of the same answer.
void AnswerMemory::chain(uint32_t at) {
  std::array<int32_t, SuffixIndex::kOrders.back()> tail;
  size_t n = 0;
  for (; n < tail.size() && n <= at; ++n)
    if ((tail[tail.size() - 1 - n] = token_[place_of(at - uint32_t(n))]) == kEnd) break;
  for (size_t o = 0; o < chains_.size(); ++o) {
    Chains& c = chains_[o];
    const size_t order = size_t(SuffixIndex::kOrders[o]);
    uint32_t before = kNone;
    if (n >= order)
      before = std::exchange(c.head[hash_of_tokens(std::span(tail).last(order)) & (c.head.size() - 1)], at);
    c.link[place_of(at)] = before;
  }
}

void AnswerMemory::push(int32_t token) {
  // The numbers of tokens would come round: what is known is laid out anew.
  if (written_ == kNone - 1) set_limit(limit_);
  if (written_ >= token_.size() && token_.size() < limit_) grow();
  token_[place_of(written_)] = token;
  chain(written_);
  ++written_;
}

void AnswerMemory::add(std::span<const int32_t> answer) {
  if (limit_ < 2 || answer.empty()) return;
  for (const int32_t t : answer.last(std::min(answer.size(), limit_ - 1)))
    if (t >= 0) push(t);
  push(kEnd);
}

void AnswerMemory::set_limit(size_t limit) {
  AnswerMemory other(limit);
  const size_t keep = std::min(n_token(), limit);
  for (size_t i = keep; i > 0; --i) other.push(token_[place_of(written_ - uint32_t(i))]);
  *this = std::move(other);
}

// Tokens that are the same up to number `at` as at the end of the history.
int AnswerMemory::length_at(uint32_t at, std::span<const int32_t> history) const {
  const size_t known = n_token() - (written_ - 1 - at);  // this one and those before it that are still there
  const size_t most = std::min({known, history.size(), size_t(SuffixIndex::kMostLength)});
  size_t n = 0;
  for (; n < most; ++n) {
    const int32_t t = token_[place_of(at - uint32_t(n))];
    if (t == kEnd || t != history[history.size() - 1 - n]) break;
  }
  return int(n);
}

void AnswerMemory::look(size_t order, std::span<const int32_t> history, std::vector<SuffixIndex::Match>& out) const {
  const Chains& c = chains_[order];
  const size_t n = size_t(SuffixIndex::kOrders[order]), found = out.size();
  if (history.size() < n || c.head.empty()) return;
  uint32_t at = c.head[hash_of_tokens(history.last(n)) & (c.head.size() - 1)], age = 0;
  for (int i = 0; i < SuffixIndex::kMostPlaces && at != kNone; ++i) {
    // Its place may have another token by now, whose chain is another one.
    const uint32_t its_age = written_ - at;
    if (its_age <= age || its_age > n_token()) break;
    age = its_age;
    const int length = length_at(at, history);
    const int32_t follows = next(int32_t(place_of(at)));
    const auto known = [&](const SuffixIndex::Match& m) { return m.next == follows; };
    if (length >= int(n) && age > 1 && std::none_of(out.begin(), out.begin() + ptrdiff_t(found), known))
      out.push_back({follows, length});
    at = c.link[place_of(at)];
  }
}

void AnswerMemory::matches(std::span<const int32_t> history, std::vector<SuffixIndex::Match>& out) const {
  out.clear();
  for (size_t o = chains_.size(); o-- > 0;) look(o, history, out);
  sort_matches(out);
}

// --- by owner

std::list<AnswerStore::Owner>::iterator AnswerStore::use(const std::string& owner) {
  const auto at = std::find_if(owners_.begin(), owners_.end(), [&](const Owner& o) { return o.name == owner; });
  if (at != owners_.end()) owners_.splice(owners_.begin(), owners_, at);
  return at == owners_.end() ? at : owners_.begin();
}

const AnswerMemory* AnswerStore::find(const std::string& owner) {
  if (!on()) return nullptr;
  const auto at = use(owner);
  return at == owners_.end() ? nullptr : &at->memory;
}

void AnswerStore::add(const std::string& owner, std::span<const int32_t> answer) {
  if (!on() || answer.empty()) return;
  auto at = use(owner);
  if (at == owners_.end()) {
    if (owners_.size() == size_t(kMostOwners)) owners_.pop_back();
    if (const size_t shares = std::bit_ceil(owners_.size() + 1); shares > shares_) {
      shares_ = shares;
      for (Owner& o : owners_) o.memory.set_limit(limit_ / shares_);
    }
    owners_.push_front({owner, AnswerMemory(limit_ / shares_)});
    at = owners_.begin();
  }
  at->memory.add(answer);
}

size_t AnswerStore::n_token() const {
  size_t n = 0;
  for (const Owner& o : owners_) n += o.memory.n_token();
  return n;
}
size_t AnswerStore::bytes() const {
  size_t n = 0;
  for (const Owner& o : owners_) n += o.memory.bytes();
  return n;
}

}  // namespace facet
