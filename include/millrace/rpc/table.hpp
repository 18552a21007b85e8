// The table of a server's procedures: what a client asks for right after it has connected, so that
// both mean the same by the numbers that travel; and the same with what was counted, for programs
// that want to see it (`millrace rpc list`).
//
//   table    | version (32 bits) | entries (32) | entry …
//   entry    | number (16) | facts (8) | kind of request (8) | kind of response (8) | 0 (8) |
//            | bytes of the three names (16 each) | sizes of request and response (32 each) |
//            | names … | in a report: values (16), and 64 bits each |
//
// Everything here may have been written by a hostile peer: parse_…() tells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/language.hpp"
#include "millrace/rpc/procedure.hpp"

namespace millrace::rpc {

/// What a server of typed calls says that it is (message::Tuning::service).
inline constexpr std::string_view server_service = "rpc server";

/// One of a server's procedures, and what was counted of it since the server was made.
struct ProcedureReport {
    std::uint16_t number = 0;
    Signature signature{};
    std::uint64_t calls = 0;       ///< that reached the server
    std::uint64_t answered = 0;    ///< by an answer of the handler
    std::uint64_t failed = 0;      ///< by an error of the handler, or by none
    std::uint64_t late = 0;        ///< not handed to the handler: their deadline had passed
    std::uint64_t overloaded = 0;  ///< not handed to it: too much was under way
    std::uint64_t unwanted = 0;    ///< whose clients took them back, or left
    std::uint64_t pending = 0;     ///< handed to it, and not answered
    /// From when the server took a request until it was answered, in nanoseconds: of the first 64
    /// calls, and of each eighth then.
    std::uint64_t latency_p50 = 0, latency_p90 = 0, latency_p99 = 0, latency_p999 = 0,
                  latency_most = 0;
};

inline constexpr std::uint32_t table_version = 2;
/// Of each of the three names.
inline constexpr std::size_t longest_name = 1024;

/// With or without what was counted.
[[nodiscard]] std::vector<std::byte> write_table(std::span<const ProcedureReport> procedures,
                                                 bool with_counts);
/// None: no server that keeps to the protocol says this.
[[nodiscard]] std::optional<std::vector<ProcedureReport>> parse_table(
    std::span<const std::byte> payload, bool with_counts);

/// Why the two cannot talk to each other of the procedure; empty: they can.
[[nodiscard]] std::string why_different(const Signature& ours, const Signature& theirs);

}  // namespace millrace::rpc
