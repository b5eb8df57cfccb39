#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// What a hub has, as data: names that users give, listings of repositories, and which files of one are meant.
namespace facet {

// "USER/REPO", "USER/REPO:QUANT" or "USER/REPO/FILE", with or without "hf:" before it.
struct HubName {
  std::string repo = {};  // USER/REPO
  std::string quant = {}, file = {};
  std::string text() const { return repo + (quant.empty() ? "" : ":" + quant) + (file.empty() ? "" : "/" + file); }
};
Result<HubName> parse_hub_name(std::string_view text);

struct RemoteFile {
  std::string path = {};    // in the repository; untrusted until check_remote_path()
  uint64_t size = 0;        // bytes
  std::string sha256 = {};  // 64 digits; empty for a small file, which has
  std::string git = {};     // its name in Git: SHA-1 of "blob SIZE\0" and the content, 40 digits
};

constexpr size_t kMaxListing = 8 << 20;       // bytes of a page of a listing
constexpr size_t kMaxRemoteFiles = 10'000;    // of a repository
constexpr uint64_t kMaxRemoteSize = 1 << 20;  // MB of a file

// A page of GET /api/models/USER/REPO/tree/REV, its files added to `files`; folders are left out.
Status parse_tree(std::string_view json, const std::string& where, std::vector<RemoteFile>& files);

// Whether a path of a repository is one that may be made below a folder here: letters, digits and ._-+ in up to eight
// names, none of which begins with a dot or a dash.
Status check_remote_path(const std::string& path);

// kModelWithEncoders: its mmproj file comes along, if the repository has one.
enum class HubUse { kModel, kModelWithEncoders, kDrafter };

// The files that a name means, all parts of a split one, the first part first. The paths are checked.
struct HubChoice {
  std::vector<RemoteFile> files = {};  // the encoders come last
  bool folder = false;                 // a drafter in several safetensors files: what is opened is their folder
  std::string note = {};               // what a user should know of the choice
};
// The mmproj file for a model: of those in its folder or above, the nearest, then as find_mmproj() has it: the one named
// like the model, then BF16, F16, F32, Q8_0. Null: there is none.
const RemoteFile* choose_encoders(const std::vector<RemoteFile>& files, const std::string& model_path);
Result<HubChoice> choose_files(const std::vector<RemoteFile>& files, const HubName& name, HubUse use);

// "Q4_K_M", "UD-Q4_K_XL", "BF16"; empty: the name says none.
std::string quant_of(std::string_view path);

}  // namespace facet
