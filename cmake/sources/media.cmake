# The sources of src/media, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  bmp_reader.cpp
  exif.cpp
  flac_reader.cpp
  gif_reader.cpp
  jpeg_reader.cpp
  mel.cpp
  mp3_reader.cpp
  patches.cpp
  picture.cpp
  png_reader.cpp
  resample.cpp
  resize.cpp
  sound.cpp
  wav_reader.cpp
  webp_reader.cpp
)
