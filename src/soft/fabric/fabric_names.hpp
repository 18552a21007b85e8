// How the nodes of a fabric are called: the abstract socket and the memfds of a node number.
// Called by whoever makes a node or looks for one.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace millrace::soft {

/// Throws `base::Error` unless `fabric` is 1 to 64 of the characters A-Z a-z 0-9 . _ -
void check_fabric_name(std::string_view fabric);

/// "\0millrace/<uid>/<fabric>/<number>": its owner holds the node number.
struct NodeAddress {
    NodeAddress(uid_t user, std::string_view fabric, std::uint32_t number);
    [[nodiscard]] const sockaddr* get() const noexcept {
        return reinterpret_cast<const sockaddr*>(&address);
    }
    sockaddr_un address{};
    socklen_t length = 0;
};

/// Whose name is in use.
struct NodeName {
    uid_t user;
    std::string fabric;
    std::uint32_t node;
    auto operator<=>(const NodeName&) const = default;
};
/// Of all nodes whose sockets there are now, every user's. May throw.
[[nodiscard]] std::set<NodeName> names_in_use();

/// "millrace-node:<fabric>:<number>", the file of tables.
[[nodiscard]] std::string tables_name(std::string_view fabric, std::uint32_t number);
/// "millrace-blocks:<fabric>:<number>", the file of blocks.
[[nodiscard]] std::string blocks_name(std::string_view fabric, std::uint32_t number);

/// "node 7 of fabric 'default'", for messages.
[[nodiscard]] std::string describe_node(std::string_view fabric, std::uint32_t number);

}  // namespace millrace::soft
