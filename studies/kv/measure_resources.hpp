// What a client takes at both ends, by transport. Used by `millrace bench kv --figure resources`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::bench {

struct ResourceCase {
    std::size_t clients = 1;
    connect::Transport transport = connect::Transport::rc;
    /// Over `rc`: how requests and answers travel.
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
};

/// Of one process: its queue pairs, what it has registered, and the descriptors that are open.
struct Resources {
    double queue_pairs = 0;
    double registered_bytes = 0;
    double descriptors = 0;
};
/// The server's process, and that of all clients; what they have without any client is left out.
struct ResourcesOfBoth {
    Resources server;
    Resources clients;
};

/// With options as they are by default. What is shared by all clients (the receives of UD) counts
/// from the first one on, as what a server has before its first client is left out but for that.
/// Throws Error.
[[nodiscard]] ResourcesOfBoth measure_resources(const ResourceCase& chosen);

}  // namespace millrace::bench
