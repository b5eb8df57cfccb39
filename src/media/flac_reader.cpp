#include "media/sound_reader.h"

#if FACET_MEDIA
#include "media/foreign.h"

#include <FLAC/stream_decoder.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

namespace facet::media {
namespace {

// What libFLAC's callbacks work on. Nothing is thrown through libFLAC.
struct Reader {
  const SoundSource& source;
  SoundFrames& frames;
  size_t at = 0;  // in the file
  uint32_t rate = 0, channels = 0;
  int64_t said = 0, decoded = 0;  // samples of each channel; said 0: unknown
  Status status = Ok{};
  std::exception_ptr thrown = nullptr;
  const char* broken = nullptr;
  std::vector<float> some = {};
};

FLAC__StreamDecoderReadStatus on_read(const FLAC__StreamDecoder*, FLAC__byte* to, size_t* n, void* context) {
  Reader& r = *static_cast<Reader*>(context);
  *n = std::min(*n, r.source.bytes.size() - r.at);
  if (*n == 0) return FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM;
  std::memcpy(to, r.source.bytes.data() + r.at, *n);
  r.at += *n;
  return FLAC__STREAM_DECODER_READ_STATUS_CONTINUE;
}

Status add_frame(Reader& r, const FLAC__Frame& frame, const FLAC__int32* const* channels) {
  const FLAC__FrameHeader& h = frame.header;
  if (!r.frames.begun()) {
    if (auto ok = r.frames.begin("FLAC", h.sample_rate, h.channels, -1); !ok) return ok;
    r.rate = h.sample_rate, r.channels = h.channels;
  }
  if (h.sample_rate != r.rate || h.channels != r.channels) {
    return r.source.error(fmt::format("a FLAC whose frames differ: {} Hz, {} channels, then {} Hz, {} channels", r.rate,
                                      r.channels, h.sample_rate, h.channels));
  }
  const double scale = 1.0 / double(int64_t{1} << (h.bits_per_sample - 1));
  r.some.resize(size_t(h.blocksize) * h.channels);
  for (size_t i = 0; i < h.blocksize; ++i) {
    for (size_t c = 0; c < h.channels; ++c) r.some[i * h.channels + c] = float(channels[c][i] * scale);
  }
  return r.frames.add(r.some);
}

FLAC__StreamDecoderWriteStatus on_write(const FLAC__StreamDecoder*, const FLAC__Frame* frame,
                                        const FLAC__int32* const channels[], void* context) {
  Reader& r = *static_cast<Reader*>(context);
  try {
    r.status = add_frame(r, *frame, channels);
    r.decoded += frame->header.blocksize;
  } catch (...) {
    r.thrown = std::current_exception();  // thrown again behind libFLAC
  }
  return r.status && !r.thrown ? FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE : FLAC__STREAM_DECODER_WRITE_STATUS_ABORT;
}

void on_metadata(const FLAC__StreamDecoder*, const FLAC__StreamMetadata* m, void* context) {
  Reader& r = *static_cast<Reader*>(context);
  if (m->type == FLAC__METADATA_TYPE_STREAMINFO) r.said = int64_t(m->data.stream_info.total_samples);
}

void on_error(const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus status, void* context) {
  Reader& r = *static_cast<Reader*>(context);
  r.broken = FLAC__StreamDecoderErrorStatusString[status];
}

struct DeleteDecoder {
  void operator()(FLAC__StreamDecoder* d) const { FLAC__stream_decoder_delete(d); }
};

}  // namespace

Status read_flac(const SoundSource& source, SoundFrames& frames) {
  const std::unique_ptr<FLAC__StreamDecoder, DeleteDecoder> d(FLAC__stream_decoder_new());
  Reader r{source, frames};
  if (!d || FLAC__stream_decoder_init_stream(d.get(), on_read, nullptr, nullptr, nullptr, nullptr, on_write,
                                             on_metadata, on_error, &r) != FLAC__STREAM_DECODER_INIT_STATUS_OK) {
    return source.error("a FLAC; no memory to read it", "free memory");
  }
  bool ok = true;
  while (ok && r.status && !r.thrown && !r.broken &&
         FLAC__stream_decoder_get_state(d.get()) != FLAC__STREAM_DECODER_END_OF_STREAM) {
    ok = FLAC__stream_decoder_process_single(d.get());
  }
  if (r.thrown) std::rethrow_exception(r.thrown);
  if (!r.status) return r.status;
  if (r.broken || !ok) {
    return source.error(fmt::format("a FLAC that cannot be read: {}",
                                    r.broken ? r.broken : FLAC__stream_decoder_get_resolved_state_string(d.get())));
  }
  if (!frames.begun() || (r.said > 0 && r.decoded < r.said)) {
    return source.error(fmt::format("a FLAC that ends early: {} samples of {}", r.decoded, r.said));
  }
  return Ok{};
}

}  // namespace facet::media
#else
namespace facet::media {
Status read_flac(const SoundSource& source, SoundFrames&) {
  return source.error("a FLAC; this facet was built without FLAC (FACET_MEDIA=OFF)",
                      "build it with -DFACET_MEDIA=ON, or save the sound as WAV");
}
}  // namespace facet::media
#endif
