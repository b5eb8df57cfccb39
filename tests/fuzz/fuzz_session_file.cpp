// Input: the file of a session. A header that is accepted has sections that lie in the file, and is written back as it
// was read.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/session_file.h"

using namespace facet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto head = parse_session_head(file.first(std::min(size, kSessionHead)), size, "file");
  if (!head) return 0;
  std::vector<std::byte> bytes(file.begin(), file.begin() + ptrdiff_t(head->header_bytes));
  auto h = parse_session_header(bytes, size, "file");
  if (!h) {  // the checksum stops nearly everything: once more with the right one
    if (bytes.size() < kSessionHead) return 0;
    const uint64_t sum = session_header_checksum(bytes);
    std::memcpy(bytes.data() + kSessionHead - sizeof sum, &sum, sizeof sum);
    h = parse_session_header(bytes, size, "file");
  }
  if (!h) return 0;
  uint64_t at = head->header_bytes;
  const auto look = [&](const SessionHeader::Section& s) {
    CHECK(s.offset >= at && s.offset <= size && s.bytes() <= size - s.offset, "a section at {}", s.offset);
    at = s.offset + s.bytes();
  };
  for (const SessionHeader::Owner& o : h->owners) {
    for (const SessionHeader::Section& s : o.sections) look(s);
    look(o.beside);
  }
  CHECK(at == size, "the sections end at {} of {}", at, size);
  SessionHeader again = *h;
  place_sections(again);
  const auto written = session_header_bytes(again);
  const auto read = parse_session_header(written, again.file_bytes, "file");
  CHECK(read && read->tokens == h->tokens && read->salt == h->salt && read->owners.size() == h->owners.size(),
        "what was read is not written back");
  return 0;
}
