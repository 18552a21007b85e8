// How the two ends of a run find each other: by the Unix socket's path that a run has, or, where
// the consumer listens on an address of a host, by a file in the same folder that tells its port.
// Used by the transports.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/connect/address.hpp"
#include "transport.hpp"

namespace millrace::tools::demo {

/// Tells the producer. Throws Error.
void tell_port(const TransportOptions& options, std::uint16_t port);
/// Before a round: what the consumer of the last one has told counts no more.
void forget_port(const TransportOptions& options) noexcept;
/// What the consumer has told, if anything yet.
[[nodiscard]] std::optional<std::uint16_t> told_port(const TransportOptions& options);

/// Where a consumer of Millrace listens.
[[nodiscard]] connect::Address address_to_listen(const TransportOptions& options);
/// Tells the producer which port that has become. Nothing for a Unix socket.
void tell_listening(const TransportOptions& options, const connect::Address& address);
/// Where its producer finds it; waits until it is told. Throws Error (timed_out).
[[nodiscard]] connect::Address address_to_connect(const TransportOptions& options);

}  // namespace millrace::tools::demo
