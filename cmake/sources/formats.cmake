# The sources of src/formats, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  binder.cpp
  codebooks.cpp
  dtype.cpp
  gguf.cpp
  gguf_file.cpp
  gguf_write.cpp
  kv_codec.cpp
  mixture.cpp
  mmproj_name.cpp
  quantize.cpp
  quantize_k.cpp
  random_blocks.cpp
  requantize.cpp
  safetensors.cpp
  session_file.cpp
  synth.cpp
  synth_mmproj.cpp
  synth_vocab.cpp
  synth_write.cpp
  widen.cpp
)
