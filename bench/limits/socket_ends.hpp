// Two connected stream sockets, and sending and receiving all of a message: for baselines over the
// kernel's sockets.
#pragma once

#include <cstddef>
#include "bench/framework/pair.hpp"
#include "sockets.hpp"
#include "workload/descriptor.hpp"

namespace millrace::bench {

/// Both ends of a connection. Each side uses one and closes the other.
struct SocketEnds {
    workload::Descriptor first;
    workload::Descriptor second;
};

/// Blocking calls on them end after five seconds. Throws base::Error.
[[nodiscard]] SocketEnds connected(SocketKind kind);

void send_all(int descriptor, const std::byte* from, std::size_t size);
/// False: the other end closed before the first byte. Throws base::Error.
bool receive_all(Pair& pair, int descriptor, std::byte* to, std::size_t size, SocketWait wait);

}  // namespace millrace::bench
