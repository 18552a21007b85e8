// How the nodes of a fabric are called: the abstract socket and the memfds of a node number.
// Called by whoever makes a node or looks for one.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// The numbers of the nodes of this user's fabric whose sockets there are now. May throw.
[[nodiscard]] std::vector<std::uint32_t> list_nodes(uid_t user, std::string_view fabric);

/// "millrace-node:<fabric>:<number>", the file of tables.
[[nodiscard]] std::string tables_name(std::string_view fabric, std::uint32_t number);
/// "millrace-blocks:<fabric>:<number>", the file of blocks.
[[nodiscard]] std::string blocks_name(std::string_view fabric, std::uint32_t number);

/// "node 7 of fabric 'default'", for messages.
[[nodiscard]] std::string describe_node(std::string_view fabric, std::uint32_t number);

}  // namespace millrace::soft
