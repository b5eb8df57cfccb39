#pragma once
#include <cstdio>

// libjpeg, libpng and libFLAC are archives that may stand in libfacet.so. They name `stderr` in a way that only a program
// allows, so cmake/media.cmake gives it this name in them. Nothing is printed there: facet takes their messages.
extern "C" {
[[gnu::used]] inline std::FILE* facet_media_stderr = stderr;
}
