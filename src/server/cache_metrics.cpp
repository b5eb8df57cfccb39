#include "server/cache_metrics.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace facet {

namespace {

// Nothing is written because there is no room: without a folder nothing is dropped either.
bool is_paused(const CacheStats& c) { return c.disk.limit == 0 && c.disk_dropped > 0; }

}  // namespace

std::string cache_metrics(const CacheStats& c) {
  std::string out;
  const auto family = [&](std::string_view name, std::string_view help, const char* type) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  };
  const auto single = [&](std::string_view name, std::string_view help, auto value) {
    family(name, help, "counter");
    out += fmt::format("{} {}\n", name, value);
  };
  single("facet_cache_queries_total", "Requests that may go on from something.", c.queries);
  single("facet_cache_query_tokens_total", "Tokens of their prompts.", c.query_tokens);
  single("facet_cache_hits_total", "Of the requests, those that went on from something.", c.hits);
  single("facet_cache_hit_tokens_total", "Of the tokens, those that were not computed again.", c.hit_tokens);
  single("facet_cache_restore_seconds_total", "Reading states back from RAM and disk.", c.restore_s);
  single("facet_cache_copies_total", "States copied out of the pool.", c.copies);
  single("facet_cache_copies_waited_total",
         "Of them, those for which the engine's thread waited, and all requests with it.", c.copies_waited);
  single("facet_cache_disk_errors_total", "Files that could not be read or trusted.", c.disk_errors);
  single("facet_cache_disk_dropped_total", "States that were not written because the disk was behind or had no room.",
         c.disk_dropped);
  family("facet_cache_disk_paused", "1 while nothing is written because there is no room.", "gauge");
  out += fmt::format("facet_cache_disk_paused {}\n", int(is_paused(c)));
  using Tier = CacheStats::Tier;
  const std::pair<const char*, const Tier*> tiers[] = {{"gpu", &c.gpu}, {"ram", &c.ram}, {"disk", &c.disk}};
  const auto by_tier = [&](std::string_view name, std::string_view help, const char* type, int64_t Tier::*field) {
    family(name, help, type);
    for (const auto& [tier, t] : tiers) out += fmt::format("{}{{tier=\"{}\"}} {}\n", name, tier, t->*field);
  };
  by_tier("facet_cache_bytes", "In use.", "gauge", &Tier::bytes);
  by_tier("facet_cache_entries", "States to go on from.", "gauge", &Tier::entries);
  by_tier("facet_cache_limit_bytes", "What it may use; 0: it is off.", "gauge", &Tier::limit);
  by_tier("facet_cache_tier_hits_total", "Requests that went on from here.", "counter", &Tier::hits);
  by_tier("facet_cache_tier_hit_tokens_total", "Their tokens that were not computed again.", "counter",
          &Tier::hit_tokens);
  by_tier("facet_cache_evictions_total", "States that had to make room.", "counter", &Tier::evictions);
  by_tier("facet_cache_restores_total", "States that were read back.", "counter", &Tier::restores);
  return out;
}

void note_cache_errors(const CacheStats& c, Health& health) {
  if (c.disk_errors > 0) health.degrade("disk cache", "some of its files could not be read or trusted");
  if (is_paused(c))
    health.degrade("disk cache, writing", "it waits until the folder has room");
  else
    health.restore("disk cache, writing");
}

}  // namespace facet
