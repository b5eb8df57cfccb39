// What --draft names: paths as they are, or what a search finds.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/hub_models.h"
#include "app/options.h"
#include "model/find_drafter.h"
#include "tools/paths.h"

namespace facet {
namespace {

// Takes what a search found. Returns whether it found anything.
bool take(DraftFiles& files, const DrafterSearch& s) {
  for (const Error& e : s.unfit) files.notes.push_back(fmt::format("drafter passed over: {}", e.message()));
  if (s.path.empty()) return false;
  files.paths.push_back(s.path);
  if (!s.also.empty())
    files.notes.push_back(fmt::format("{} is the smallest drafter here that fits; --draft PATH takes another ({}{})",
                                      s.path, s.also[0], s.also.size() > 1 ? ", ..." : ""));
  return true;
}

// The drafters of a folder that fit the model, one of each kind. A folder without any is left to whoever opens it.
Status take_folder(DraftFiles& files, const std::string& folder, const std::string& model) {
  std::vector<Error> unfit;
  bool any = false;
  for (const char* kind : {"dflash", "mtp", "eagle3"}) {
    DrafterSearch s = find_drafter_in(folder, model, kind);
    if (s.path.empty()) unfit = s.unfit;  // the other search says the same
    s.unfit.clear();
    any |= take(files, s);
  }
  if (any || unfit.empty()) return Ok{};
  std::string reasons;
  for (const Error& e : unfit) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", e.where, e.what);
  return Error{folder, fmt::format("expected a drafter that fits {}, found none ({})", model, reasons), "name another"};
}

// As other programs call it too.
bool is_suffix(const std::string& s) { return s == "suffix" || s == "ngram"; }

}  // namespace

Result<DraftFiles> draft_files(const std::string& model, const DraftOptions& o) {
  DraftFiles files;
  for (std::string s : o.sources) {
    if (auto ok = fetch_named(s, HubUse::kDrafter); !ok) return ok.error();
    if (is_suffix(s)) {
      files.suffix = true;
      continue;
    }
    if (s != "none" && s != "auto" && s != "dflash" && s != "mtp") {
      const size_t before = files.paths.size();
      std::error_code ec;
      if (std::filesystem::is_directory(s, ec))
        if (auto ok = take_folder(files, s, model); !ok) return ok.error();
      if (files.paths.size() == before) files.paths.push_back(s);
      continue;
    }
    const auto others = std::count_if(o.sources.begin(), o.sources.end(), is_suffix);
    if (o.sources.size() > size_t(s == "none" ? 1 : 1 + others))
      return Error{"--draft", fmt::format("expected paths, or {} alone", s), "give one of them"};
    if (s == "none") return files;
    files.optional = s == "auto";
    for (const char* kind : {"dflash", "mtp"}) {
      if (s != "auto" && s != kind) continue;
      if (!take(files, find_drafter_beside(model, kind)) && s == kind)
        return Error{"--draft " + s,
                     fmt::format("expected a drafter that fits {} beside it, named like {}, found none", model,
                                 drafter_pattern(model, kind)),
                     files.notes.empty() ? "give its path" : files.notes[0]};
    }
  }
  // What repeats costs next to nothing to look for.
  if (files.optional) files.suffix = true;
  return files;
}

}  // namespace facet
