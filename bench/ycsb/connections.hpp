// A client's connection to a store of any kind, with what the Yahoo! Cloud Serving Benchmark needs
// of it: this library's store over each transport, what speaks Redis' protocol, and what speaks
// memcached's. Called by measure_ycsb.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peers/memcached.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/transport.hpp"

namespace millrace::bench {

/// How a store is reached.
struct YcsbWay {
    enum class Protocol : std::uint8_t { own, redis, memcached };
    std::string_view name;
    std::string_view title;
    Protocol protocol = Protocol::own;
    connect::Transport transport = connect::Transport::rc;  ///< of `own`
};
inline constexpr YcsbWay ycsb_ways[] = {
    {"rc", "mailboxes over RC", YcsbWay::Protocol::own, connect::Transport::rc},
    {"uc", "UC", YcsbWay::Protocol::own, connect::Transport::uc},
    {"ud", "UD", YcsbWay::Protocol::own, connect::Transport::ud},
    {"tcp", "our own protocol over TCP", YcsbWay::Protocol::own, connect::Transport::tcp},
    {"unix", "our own protocol over Unix sockets", YcsbWay::Protocol::own, connect::Transport::tcp},
    {"redis", "Redis' protocol", YcsbWay::Protocol::redis},
    {"memcached", "memcached's protocol", YcsbWay::Protocol::memcached},
};
/// Null: it is the name of none.
[[nodiscard]] const YcsbWay* find_ycsb_way(std::string_view name) noexcept;

enum class YcsbOutcome : std::uint8_t {
    ok,
    missing,  ///< there is no such key
    refused,  ///< the store has answered that it does not
};

/// One thread at a time. What ends the connection throws Error.
class YcsbConnection {
  public:
    using TakeValue = std::function<void(std::span<const std::byte> value)>;
    using TakeOneValue = std::function<void(std::size_t index, std::span<const std::byte> value)>;

    YcsbConnection() = default;
    YcsbConnection(const YcsbConnection&) = delete;
    YcsbConnection& operator=(const YcsbConnection&) = delete;
    virtual ~YcsbConnection() = default;

    /// Hands the value over in place.
    virtual YcsbOutcome read(std::string_view key, const TakeValue& take) = 0;
    virtual YcsbOutcome write(std::string_view key, std::span<const std::byte> value) = 0;
    /// All keys by one request, or by as many at once as the connection has on their way. Hands
    /// over the values of those that are there. `missing`: one is not.
    virtual YcsbOutcome read_several(std::span<const std::string> keys,
                                     const TakeOneValue& take) = 0;
};

/// Of a server that listens there. `scans`: read_several() will be called. Throws Error; this
/// library's protocol waits until `deadline` for a server to come.
[[nodiscard]] std::unique_ptr<YcsbConnection> connect_ycsb(const YcsbWay& way,
                                                           const connect::Address& server,
                                                           bool scans,
                                                           const base::Deadline& deadline);
/// Of one whose socket is connected: `redis` or `memcached`.
[[nodiscard]] std::unique_ptr<YcsbConnection> ycsb_connection_of(YcsbWay::Protocol protocol,
                                                                 WordsClient socket);

}  // namespace millrace::bench
