// The functions of Boost.Asio and Boost.Beast, once.
#include "server/asio.h"

#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
