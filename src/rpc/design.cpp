// Names of designs.
#include "millrace/rpc/design.hpp"

#include <fmt/format.h>

namespace millrace::rpc {

std::string_view name_of(Connection connection) noexcept {
    return connection == Connection::dispatcher ? "dispatcher" : "own";
}

std::string to_string(Design design) {
    return fmt::format("{}/{}/{}", name_of(design.request), name_of(design.response),
                       name_of(design.connection));
}

Design parse_design(std::string_view name) {
    for (const Design design : every_design) {
        if (to_string(design) == name) return design;
    }
    throw base::Error{base::ErrorCode::invalid_argument, "read the design of a client",
                      fmt::format("'{}'", name), "it is the name of none",
                      "write request/response/connection, as in write/send/own: write or send, "
                      "write or send, own or dispatcher"};
}

}  // namespace millrace::rpc
