#include "media/picture_reader.h"

#if FACET_MEDIA
#include "media/foreign.h"

#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs FILE

#include <jpeglib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace facet::media {
namespace {

// libjpeg-turbo and what it calls. Its errors jump back into attempt(): nothing that it calls holds a C++ object.
struct Decoder {
  jpeg_decompress_struct c;
  jpeg_error_mgr errors;
  jpeg_source_mgr input;
  jpeg_progress_mgr progress;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
  int most_scans;
  bool created;
};

[[noreturn]] void give_up(j_common_ptr c) { longjmp(static_cast<Decoder*>(c->client_data)->jump, 1); }

[[noreturn]] void give_up_with(j_common_ptr c, const char* text) {
  std::strncpy(static_cast<Decoder*>(c->client_data)->message, text, JMSG_LENGTH_MAX - 1);
  give_up(c);
}

void on_error(j_common_ptr c) {
  c->err->format_message(c, static_cast<Decoder*>(c->client_data)->message);
  give_up(c);
}

// What libjpeg only warns of, Pillow takes too.
void on_message(j_common_ptr, int) {}
void on_output(j_common_ptr) {}
void no_input_work(j_decompress_ptr) {}

boolean at_end(j_decompress_ptr c) { give_up_with(reinterpret_cast<j_common_ptr>(c), "the file ends early"); }

void skip_input(j_decompress_ptr c, long n) {
  if (n <= 0) return;
  if (size_t(n) > c->src->bytes_in_buffer) at_end(c);
  c->src->next_input_byte += n;
  c->src->bytes_in_buffer -= size_t(n);
}

// Scans of a progressive file that hold nothing cost a pass over all blocks each.
void on_progress(j_common_ptr c) {
  const auto* d = static_cast<Decoder*>(c->client_data);
  if (d->c.input_scan_number > d->most_scans) give_up_with(c, "too many scans");
}

// Whether libjpeg came back on its own. f calls libjpeg and nothing else.
template <class F>
__attribute__((noinline)) bool attempt(Decoder& d, F f) {
  if (setjmp(d.jump) != 0) return false;
  f();
  return true;
}

void create(Decoder& d, std::span<const uint8_t> bytes) {
  d.c.err = jpeg_std_error(&d.errors);
  d.errors.error_exit = on_error;
  d.errors.emit_message = on_message;
  d.errors.output_message = on_output;
  d.c.client_data = &d;
  attempt(d, [&] {
    jpeg_create_decompress(&d.c);
    d.created = true;
  });
  d.input.next_input_byte = bytes.data();
  d.input.bytes_in_buffer = bytes.size();
  d.input.init_source = no_input_work;
  d.input.fill_input_buffer = at_end;
  d.input.skip_input_data = skip_input;
  d.input.resync_to_restart = jpeg_resync_to_restart;
  d.input.term_source = no_input_work;
  d.c.src = &d.input;
  d.progress.progress_monitor = on_progress;
  d.c.progress = &d.progress;
}

// Of all blocks, where libjpeg keeps them until the last scan; else of a few rows.
int64_t decoder_bytes(Decoder& d) {
  int64_t blocks = 0;
  const bool all = jpeg_has_multiple_scans(&d.c);
  for (int i = 0; i < d.c.num_components; ++i) {
    const jpeg_component_info& k = d.c.comp_info[i];
    // Whole units of h x v blocks.
    auto up = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
    const int64_t h = std::max(1, k.h_samp_factor), v = std::max(1, k.v_samp_factor);
    blocks += up(k.width_in_blocks, h) * (all ? up(k.height_in_blocks, v) : 2 * v);
  }
  return blocks * 128 + int64_t(d.c.image_width) * 64;
}

// The orientation of the first Exif segment in front of the picture's data.
int orientation_of(std::span<const uint8_t> bytes) {
  for (size_t at = 2; at + 4 <= bytes.size() && bytes[at] == 0xff;) {
    const uint8_t marker = bytes[at + 1];
    if (marker == 0xff) {  // padding
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) break;
    const size_t length = size_t(bytes[at + 2]) << 8 | bytes[at + 3];
    if (length < 2 || at + 2 + length > bytes.size()) break;
    const auto body = bytes.subspan(at + 4, length - 2);
    if (marker == 0xe1 && body.size() > 6 && std::memcmp(body.data(), "Exif\0\0", 6) == 0)
      return exif_orientation(body.subspan(6));
    at += 2 + length;
  }
  return 1;
}

// Ink, 255 of which is none (every writer of such files follows Adobe here), to light: Pillow's convert("RGB").
void cmyk_to_rgb(const uint8_t* in, int n, uint8_t* out) {
  for (int i = 0; i < n; ++i, in += 4, out += 3) {
    const int light = in[3];
    for (int k = 0; k < 3; ++k) {
      const int product = (255 - in[k]) * light + 128;
      out[k] = uint8_t(std::max(0, light - ((product + (product >> 8)) >> 8)));
    }
  }
}

struct Owner {
  Decoder d{};
  ~Owner() {
    if (d.created) jpeg_destroy_decompress(&d.c);
  }
};

}  // namespace

Status read_jpeg(const PictureSource& source, PictureRows& rows) {
  Owner owner;
  Decoder& d = owner.d;
  d.most_scans = source.limits.scans;
  create(d, source.bytes);
  auto failed = [&] { return source.error(fmt::format("a JPEG that cannot be read: {}", d.message)); };
  if (!d.created || !attempt(d, [&] { jpeg_read_header(&d.c, TRUE); })) return failed();
  const int components = d.c.num_components;
  if (components != 1 && components != 3 && components != 4) {
    return source.error(fmt::format("a JPEG of {} components; expected 1, 3 or 4", components), "save it as RGB");
  }
  auto wanted = rows.begin({"JPEG", d.c.image_width, d.c.image_height, orientation_of(source.bytes), decoder_bytes(d)});
  if (!wanted) return wanted.error();
  if (!*wanted) return Ok{};
  // Grey comes as grey values three times: libjpeg does it.
  d.c.out_color_space = components == 4 ? JCS_CMYK : JCS_RGB;
  if (!attempt(d, [&] { jpeg_start_decompress(&d.c); })) return failed();
  const size_t width = d.c.output_width;
  std::vector<uint8_t> row(width * 3 + kRowPadding), ink(components == 4 ? width * 4 : 0);
  JSAMPROW line = components == 4 ? ink.data() : row.data();
  for (int y = 0; y < int(d.c.output_height); ++y) {
    if (!attempt(d, [&] { jpeg_read_scanlines(&d.c, &line, 1); })) return failed();
    if (components == 4) cmyk_to_rgb(ink.data(), int(width), row.data());
    rows.row(y, row.data());
  }
  return Ok{};
}

}  // namespace facet::media
#else
namespace facet::media {
Status read_jpeg(const PictureSource& source, PictureRows&) {
  return source.error("a JPEG; this facet was built without JPEG (FACET_MEDIA=OFF)",
                      "build it with -DFACET_MEDIA=ON, or save the picture as BMP");
}
}  // namespace facet::media
#endif
