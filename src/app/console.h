#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

// What commands have in common: all of standard input in, text out, one line for an error.
namespace facet {

Result<std::string> read_stdin();
Status write_stdout(std::string_view text);  // a closed pipe or a full disk is an error
int report(const Error& error);              // to stderr, a table below it; returns kExitFailure

// Whether escape sequences may be written to a stream: a terminal that is not dumb, and nobody set NO_COLOR.
bool takes_escapes(int fd);

}  // namespace facet
