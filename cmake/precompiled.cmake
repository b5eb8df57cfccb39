# Under sanitizers most of the time is the compiler's: headers that most sources of a library include are parsed once, and
# what hardly counts while tests run is not optimised.
if(FACET_FUZZ)
  set(FACET_HEADERS <nlohmann/json.hpp> <fmt/format.h> <algorithm> <array> <chrono> <filesystem> <functional> <map> <memory> <mutex> <optional>
      <span> <string> <thread> <unordered_map> <vector>)
  foreach(name grammar session engine compose tools server)
    target_precompile_headers(facet_${name} PRIVATE ${FACET_HEADERS})
  endforeach()
  foreach(name router app)
    target_precompile_headers(facet_${name} REUSE_FROM facet_tools)
  endforeach()
  foreach(name api session engine compose server tools router daemon app)
    target_compile_options(facet_${name} PRIVATE -O0)
  endforeach()
endif()
