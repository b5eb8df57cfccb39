#pragma once
#include <string>

#include "hub/hub.h"

namespace facet {

// Where downloads are kept, and what is typed in chats; "": nobody says where, nor has a home.
std::string hub_cache_folder();

// What the environment says of downloads: FACET_CACHE, HF_ENDPOINT, HF_TOKEN and the like (docs/operations.md).
HubConfig hub_config_of_environment();

}  // namespace facet
