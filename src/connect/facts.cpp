#include "millrace/connect/facts.hpp"

#include <fmt/format.h>

namespace millrace::connect::detail {

void require_size(std::size_t told, std::size_t expected, const char* attempted,
                  const std::string& peer) {
    if (told == expected) return;
    throw base::Error{base::ErrorCode::protocol, attempted, fmt::format("peer {}", peer),
                      fmt::format("it described its end in {} bytes, not {}", told, expected),
                      "use the same build of millrace on both sides"};
}

}  // namespace millrace::connect::detail
