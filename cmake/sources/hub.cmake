# The sources of src/hub, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  curl.cpp
  download.cpp
  environment.cpp
  http.cpp
  hub.cpp
  media_fetch.cpp
  repo.cpp
  url.cpp
)
