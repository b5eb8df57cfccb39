#pragma once
#include <fmt/format.h>

#include <string_view>

#include "base/result.h"

// What the program says. Nothing here throws or ends it: a line that stderr does not take is lost, and what stdout
// does not take is remembered for the end of main, which then fails.
namespace facet {

void put_out(std::string_view text);
void put_err(std::string_view text);
bool out_failed();    // some of stdout is lost: whatever fills it may stop
Status finish_out();  // flushes; an error if any of it is lost

template <class... Args>
void print_out(fmt::format_string<Args...> f, Args&&... args) {
  put_out(fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void print_err(fmt::format_string<Args...> f, Args&&... args) {
  put_err(fmt::format(f, std::forward<Args>(args)...));
}
void flush_out();

// Names come from files and command lines: without control characters they stay on their line and a terminal obeys
// none of them.
std::string on_one_line(std::string_view text);

// Closed streams would give their numbers to the next file that is opened, and messages would go into it.
void open_closed_streams();

}  // namespace facet
