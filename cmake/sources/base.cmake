# The sources of src/base, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  base64.cpp
  check.cpp
  core_use.cpp
  files.cpp
  fmt.cpp
  hash.cpp
  host_bytes.cpp
  last_memory.cpp
  memory_use.cpp
  mmap.cpp
  notify.cpp
  nvml.cpp
  part_file.cpp
  pass_socket.cpp
  print.cpp
  reserve.cpp
  run_program.cpp
  sha.cpp
  spdlog.cpp
  thread_team.cpp
  threads.cpp
)
