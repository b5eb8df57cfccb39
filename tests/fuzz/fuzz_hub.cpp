// Any text as a listing of a hub: files or an error, and what is chosen of them stays below the cache folder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "hub/repo.h"
#include "hub/url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<facet::RemoteFile> files;
  (void)bool(facet::parse_tree(text, "u/r", files));
  for (const char* name : {"u/r", "u/r:Q8_0", "u/r/a.gguf"})
    for (const auto use : {facet::HubUse::kModel, facet::HubUse::kDrafter}) {
      const auto choice = facet::choose_files(files, *facet::parse_hub_name(name), use);
      if (!choice) continue;
      CHECK(!choice->files.empty(), "nothing chosen");
      for (const facet::RemoteFile& f : choice->files)
        CHECK(facet::check_remote_path(f.path) && f.path.find("..") != 0 && f.path[0] != '/', "chosen: {}", f.path);
    }
  if (const auto name = facet::parse_hub_name(text)) CHECK(name->repo.find("..") != 0, "repository: {}", name->repo);
  const std::string next = facet::next_link(text);
  if (facet::origin_of(next)) CHECK(!facet::origin_of(next)->empty(), "no origin");
  (void)facet::quant_of(text);
  return 0;
}
