// What the demo compares: one way of getting records from one process to another, both ends.
//
// Each transport is written as a user of it would write it: no batching the others do not have,
// one call per record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "records.hpp"

namespace millrace::tools::demo {

/// What one end counted while it worked, beyond what the operating system counts.
struct Effort {
    std::uint64_t work_requests = 0;
    std::uint64_t system_calls = 0;
};

class Sender {
  public:
    virtual ~Sender() = default;
    /// Throws Error when the peer is lost or the deadline passes.
    virtual void send(const RecordHeader& header, std::span<const std::byte> content) = 0;
    /// Sees to it that everything sent so far leaves this process.
    virtual void flush() {}
    /// Sees to it that everything sent will arrive, and closes.
    virtual void finish() = 0;
    [[nodiscard]] virtual Effort effort() = 0;
};

class Receiver {
  public:
    using Handler =
        std::function<void(const RecordHeader& header, std::span<const std::byte> content)>;
    virtual ~Receiver() = default;
    /// Waits for the next record and hands it over, where possible in place. False: closed.
    virtual bool receive(const Handler& handler) = 0;
    [[nodiscard]] virtual Effort effort() = 0;
};

struct TransportOptions {
    std::string rendezvous;    ///< a path no other run uses; transports derive addresses from it
    std::uint32_t max_record;  ///< content bytes
    std::size_t ring_bytes;    ///< per side, equal for all rings and both socket buffers
    bool has_hosts = false;    ///< Millrace's listen on `host`, too, and not on a Unix socket
    std::string host = "127.0.0.1";  ///< of the consumer
    base::Deadline deadline = base::Deadline::never();
};

struct Transport {
    std::string key;    ///< "flow-1", for --json
    std::string title;  ///< "flow queue, design 1"
    bool baseline;      ///< the kernel's own
    std::function<std::unique_ptr<Receiver>(const TransportOptions&)> listen;
    std::function<std::unique_ptr<Sender>(const TransportOptions&)> connect;
};

/// Unix stream socket and TCP.
[[nodiscard]] std::vector<Transport> socket_transports();
/// Flow queues of designs 1 and 2.
[[nodiscard]] std::vector<Transport> flow_transports();
[[nodiscard]] Transport message_transport();
/// For records that fit into a datagram.
[[nodiscard]] Transport udp_transport();

}  // namespace millrace::tools::demo
