#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "media/sound_reader.h"

namespace facet::media {
namespace {

// libmpg123 is under the LGPL: facet opens it where it is installed and is built without it. What is used of its
// interface, as its documentation has it; it is the same from 1.26 on.
struct Mpg123 {
  using Handle = struct mpg123_handle_struct;
  int (*init)() = nullptr;
  Handle* (*make)(const char*, int*) = nullptr;
  void (*destroy)(Handle*) = nullptr;
  int (*param)(Handle*, int, long, double) = nullptr;
  int (*open_feed)(Handle*) = nullptr;
  int (*decode)(Handle*, const unsigned char*, size_t, unsigned char*, size_t, size_t*) = nullptr;
  int (*getformat)(Handle*, long*, int*, int*) = nullptr;
  const char* (*strerror)(Handle*) = nullptr;
  bool ready = false;

  static constexpr int kAddFlags = 2;                        // parameter
  static constexpr long kQuiet = 0x20, kForceFloat = 0x400;  // flags
  static constexpr int kNeedMore = -10, kNewFormat = -11, kOk = 0, kDone = -12;
  static constexpr int kFloat32 = 0x200;  // encoding

  Mpg123() {
    void* library = dlopen("libmpg123.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    bool all = true;
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      all = all && function;
    };
    find(init, "mpg123_init");
    find(make, "mpg123_new");
    find(destroy, "mpg123_delete");
    find(param, "mpg123_param");
    find(open_feed, "mpg123_open_feed");
    find(decode, "mpg123_decode");
    find(getformat, "mpg123_getformat");
    find(strerror, "mpg123_strerror");
    ready = all && init() == kOk;
  }
};

const Mpg123& mpg123() {
  static const Mpg123 library;
  return library;
}

struct DeleteHandle {
  void operator()(Mpg123::Handle* h) const { mpg123().destroy(h); }
};

// How the decoder's format is now. Errors: it has changed in the middle.
Status take_format(const SoundSource& source, Mpg123::Handle* h, SoundFrames& frames, long& rate, int& channels) {
  long new_rate = 0;
  int new_channels = 0, encoding = 0;
  mpg123().getformat(h, &new_rate, &new_channels, &encoding);
  if (encoding != Mpg123::kFloat32 || new_channels < 1)
    return source.error("an MP3 that libmpg123 does not give as floats", "save it as WAV");
  if (frames.begun()) {
    if (new_rate == rate && new_channels == channels) return Ok{};
    return source.error(fmt::format("an MP3 whose parts differ: {} Hz, {} channels, then {} Hz, {} channels", rate,
                                    channels, new_rate, new_channels),
                        "save it as WAV");
  }
  rate = new_rate;
  channels = new_channels;
  return frames.begin("MP3", rate, channels, -1);
}

}  // namespace

Status read_mp3(const SoundSource& source, SoundFrames& frames) {
  const Mpg123& lib = mpg123();
  if (!lib.ready) {
    return source.error("an MP3; reading it takes libmpg123, which is not installed",
                        "install libmpg123-0 (Debian, Ubuntu), or send WAV or FLAC");
  }
  int status = 0;
  const std::unique_ptr<Mpg123::Handle, DeleteHandle> h(lib.make(nullptr, &status));
  if (!h) return source.error("an MP3; no memory to read it", "free memory");
  lib.param(h.get(), Mpg123::kAddFlags, Mpg123::kQuiet | Mpg123::kForceFloat, 0);
  if (lib.open_feed(h.get()) != Mpg123::kOk) return source.error("an MP3 that cannot be read");
  std::vector<float> some(1 << 14);
  long rate = 0;
  int channels = 0;
  constexpr size_t kAtOnce = 1 << 16;  // bytes of the file
  for (size_t at = 0;;) {
    // What was fed is decoded before more is: libmpg123 holds no more than a piece of the file.
    size_t n_bytes = 0;
    status = lib.decode(h.get(), nullptr, 0, reinterpret_cast<unsigned char*>(some.data()), some.size() * sizeof(float),
                        &n_bytes);
    if (status == Mpg123::kNewFormat) {
      if (auto ok = take_format(source, h.get(), frames, rate, channels); !ok) return ok;
    }
    if (n_bytes > 0 && frames.begun()) {
      if (auto ok = frames.add({some.data(), n_bytes / sizeof(float)}); !ok) return ok;
    }
    if (status == Mpg123::kDone) break;
    if (status == Mpg123::kNeedMore) {
      if (at == source.bytes.size()) break;
      const size_t n = std::min(kAtOnce, source.bytes.size() - at);
      status = lib.decode(h.get(), source.bytes.data() + at, n, nullptr, 0, &n_bytes);
      at += n;
      if (status == Mpg123::kNewFormat) {
        if (auto ok = take_format(source, h.get(), frames, rate, channels); !ok) return ok;
      } else if (status != Mpg123::kOk && status != Mpg123::kNeedMore) {
        return source.error(fmt::format("an MP3 that cannot be read: {}", lib.strerror(h.get())));
      }
    } else if (status != Mpg123::kOk && status != Mpg123::kNewFormat) {
      return source.error(fmt::format("an MP3 that cannot be read: {}", lib.strerror(h.get())));
    }
  }
  if (!frames.begun()) return source.error("an MP3 that cannot be read: no MPEG frame in it");
  return Ok{};
}

}  // namespace facet::media
