# The sources of src/daemon, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  daemon.cpp
  json_lines.cpp
  line_protocol.cpp
  media_prompt.cpp
  paths.cpp
  token_stream.cpp
)
