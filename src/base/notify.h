#pragma once
#include <string_view>

namespace facet {

// Tells the service manager that started this process about it: "READY=1". systemd's protocol: a datagram to the socket
// that NOTIFY_SOCKET names, a path, or "@NAME" in the abstract namespace. Without the variable nobody is told. False:
// somebody should have been, and could not.
bool notify_service_manager(std::string_view state);

}  // namespace facet
