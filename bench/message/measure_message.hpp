// What `millrace bench message` and its bars measure: calls and loads of one server and many
// clients, each side a process pinned to a core of its own; the same over sockets; scans.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/connect/transport.hpp"
#include "millrace/message/detail/mailbox_scan.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::bench {

/// Nanoseconds that one scan of so many empty mailboxes takes.
double scan_of_empty(message::ScanKernel kernel, std::size_t count);
/// How offsets of 4 bytes are looked at.
enum class OffsetScan : std::uint8_t {
    scalar,  ///< one by one, as listing A.6 of work 001
    sse2,    ///< 16 bytes at a time, as listing A.7
    avx2,    ///< 32, as listing A.8, which the work could not measure
};
inline constexpr std::array every_offset_scan{OffsetScan::scalar, OffsetScan::sse2,
                                              OffsetScan::avx2};
[[nodiscard]] std::string_view name_of(OffsetScan scan) noexcept;
/// True if this build has it, and this processor can run it.
[[nodiscard]] bool is_available(OffsetScan scan) noexcept;
/// The same of so many offsets that tell of nothing. Precondition: is_available.
double scan_of_empty_offsets(OffsetScan scan, std::size_t count);

/// How requests and answers travel.
struct Ways {
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    message::Receives receives = message::Receives::own;
    connect::Transport transport = connect::Transport::rc;
    bool unix_domain = false;  ///< the two ends meet over a Unix socket, not over TCP
};

[[nodiscard]] constexpr bool is_by_socket(const Ways& ways) noexcept {
    return ways.transport == connect::Transport::tcp;
}

struct CallSetting {
    message::Polling polling = message::Polling::flag;
    Ways ways{};
    std::size_t connected = 1;  ///< clients, of which one calls
    std::size_t bytes = 64;     ///< of a request and its answer
    bool zero_copy = true;      ///< at both ends
    std::uint64_t calls = 20'000;
    std::string mode{};  ///< of the soft device; empty: as the environment says
    std::optional<message::ScanKernel> scan{};  ///< the server's; not given: the fastest
};
/// Nanoseconds of a call, the median window.
double call_of_one(const CallSetting& setting);

struct LoadSetting {
    message::Polling polling = message::Polling::flag;
    Ways ways{};
    std::size_t connected = 16;
    std::size_t active = 16;   ///< of these, driven by one thread
    std::uint32_t window = 1;  ///< requests of each without an answer
    bool batches = false;      ///< … go in one message each time, as far as there is room
    std::uint64_t requests = 400'000;
    std::string mode{};  ///< as above
};
struct Load {
    double per_second = 0;
    double least_to_mean = 0;  ///< requests of the client that was served least, to the mean
};
/// Requests of 64 bytes, each answered by as many.
Load load_of_many(const LoadSetting& setting);

/// Batches between two processes and nothing of ours: what the machine allows.
struct BareSetting {
    std::size_t clients = 16;
    std::size_t window = 16;  ///< messages of 64 bytes in a batch
    std::size_t places = 1;   ///< batches that lie in turn, of each client, each way
    std::size_t stride = 0;   ///< bytes from one to the next, at least; 0: one after the other
    std::uint64_t requests = 400'000;
};
/// Messages per second that are sent, echoed and read in full.
double bare_batches(const BareSetting& setting);

/// Requests per second of the same load over Unix stream sockets, one server with epoll.
double load_over_sockets(std::size_t clients, std::uint32_t window, std::uint64_t requests);

/// As many clients of `wanted` as the limit on open files allows in each process, which is raised.
std::size_t clients_allowed(std::size_t wanted);

}  // namespace millrace::bench
