// Sessions: what a client and a server say to each other over a channel, so that requests have
// numbers, answers find their requests in any order, and none is executed twice. Used by Server
// and Client; what builds on messages (calls, stores) builds on these.
//
// Each message of the channel begins with a SessionHeader of 16 bytes:
//
//   offset 0         6          8     9        10        12          16
//   | id (48 bits)   | procedure | kind | outcome | behind | limit_us | payload …
//
// A client numbers its requests from 1 on, without gaps, for as long as the session lives: a number
// never comes again. `behind` says in each of its messages how many numbers before `id` the lowest
// one is that it has no answer to yet: every answer below is acknowledged. The server takes each
// number once; a number that it has taken is a request that was sent again, because the channel
// broke, and is answered from what is kept of the answers that are not acknowledged.
//
// A message may stay with its sender, which announces it: then the kind is one of …_by_read, the
// rest of the header is the message's, and the payload is an Announcement (rendezvous.hpp in
// src/message). A request counts as taken when its announcement does.
//
// A message may be several requests, or several answers: then the kind is one of …_batch, the rest
// of the header is as detail/entries.hpp says, and the payload is their entries. Each counts
// as one that came by itself.
//
// A session belongs to one client, which is known by 128 random bits. It outlives a channel, if the
// client asked for that, and never its server. Where several servers share an address (ServerGroup)
// the client names the one that welcomed it last when it comes back.
//
// Everything here may have been written by a hostile peer: parse_…() tells.
//
//     const message::SessionHead head = message::pack({.id = 7, .procedure = 3});
//     if (message::parse(message, header, payload)) … header.id …
//
// Source: work 001, section 4.2 (N-to-one), whose limit of one outstanding message is gone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/base/language.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message {

/// How a request ended.
enum class Outcome : std::uint8_t {
    ok,          ///< the payload is the answer
    failed,      ///< the handler said so, or threw: the payload is the text
    dropped,     ///< the server let go of the request without an answer
    overloaded,  ///< too much was pending, and nothing was done: try again later
    draining,    ///< the server is about to stop, and nothing was done
    too_large,   ///< the request, or its answer, is longer than allowed
    cancelled,   ///< by the client; it may have been executed
    expired,     ///< executed before the connection was lost, and its answer is not kept any more
    // What the client finds by itself:
    session_lost,  ///< the server knows nothing of the session any more: it may have been executed
    timed_out,     ///< the deadline passed; it may be executed still, and nobody hears of it
    closed,        ///< this end, or the server, has closed
    peer_lost,     ///< the server died, or the connection broke; it may have been executed
};
[[nodiscard]] std::string_view name_of(Outcome outcome) noexcept;
/// Outcomes above are the client's own, and never travel.
inline constexpr Outcome last_outcome_sent = Outcome::expired;
/// How a request ends that could not be sent, or waited for, because of that.
[[nodiscard]] Outcome outcome_of(base::Status status) noexcept;

enum class SessionKind : std::uint8_t {
    hello = 1,  ///< client: the first message of a channel. Payload: Hello
    welcome,    ///< server: its answer. Payload: Welcome
    refused,    ///< server: its other answer, and its last word. Payload: why, in words
    request,
    answer,
    cancel,           ///< client: does not want the answer to `id` any more
    request_by_read,  ///< as request and answer, whose payload is to be READ. Payload: Announcement
    answer_by_read,
    request_batch = 10,  ///< several requests, of numbers that follow each other
    answer_batch,        ///< several answers, of any numbers
};
inline constexpr SessionKind last_session_kind = SessionKind::answer_batch;

struct SessionHeader {
    std::uint64_t id = 0;         ///< of the request; below 2^48
    std::uint16_t procedure = 0;  ///< of a request: a number that means something to the program
    SessionKind kind = SessionKind::request;
    Outcome outcome = Outcome::ok;  ///< of an answer
    std::uint16_t behind = 0;       ///< of what a client sends
    /// Of a request: how long its client waits; 0: for ever. Of several in one message: how far
    /// their sender has read what comes the other way (detail/entries.hpp).
    std::uint32_t limit_us = 0;
};
inline constexpr std::uint64_t largest_request_id = (std::uint64_t{1} << 48) - 1;

/// As it travels.
using SessionHead = std::array<std::uint64_t, 2>;
inline constexpr std::size_t session_head_bytes = sizeof(SessionHead);

[[nodiscard, gnu::always_inline]] inline SessionHead pack(const SessionHeader& header) noexcept {
    return {header.id | std::uint64_t{header.procedure} << 48,
            std::uint64_t{static_cast<std::uint8_t>(header.kind)} |
                std::uint64_t{static_cast<std::uint8_t>(header.outcome)} << 8 |
                std::uint64_t{header.behind} << 16 | std::uint64_t{header.limit_us} << 32};
}
/// False: no peer that keeps to the protocol sends this. What is allowed of whom, and when, is for
/// the caller to say.
[[nodiscard, gnu::always_inline]] inline bool parse(const SessionHead& head,
                                                    SessionHeader& header) noexcept {
    const auto kind = static_cast<std::uint8_t>(head[1]);
    const auto outcome = static_cast<std::uint8_t>(head[1] >> 8);
    header.id = head[0] & largest_request_id;
    header.procedure = static_cast<std::uint16_t>(head[0] >> 48);
    header.kind = static_cast<SessionKind>(kind);
    header.outcome = static_cast<Outcome>(outcome);
    header.behind = static_cast<std::uint16_t>(head[1] >> 16);
    header.limit_us = static_cast<std::uint32_t>(head[1] >> 32);
    return kind >= static_cast<std::uint8_t>(SessionKind::hello) &&
           kind <= static_cast<std::uint8_t>(last_session_kind) &&
           outcome <= static_cast<std::uint8_t>(last_outcome_sent);
}
/// A message's head and payload. False: it is too short for a head.
[[nodiscard, gnu::always_inline]] inline bool cut_head(
    std::span<const std::byte> message, SessionHead& head,
    std::span<const std::byte>& payload) noexcept {
    if (message.size() < session_head_bytes) [[unlikely]]
        return false;
    std::memcpy(&head, message.data(), sizeof head);
    payload = message.subspan(session_head_bytes);
    return true;
}
/// Header and payload of a message; false as either of the two.
[[nodiscard, gnu::always_inline]] inline bool parse(std::span<const std::byte> message,
                                                    SessionHeader& header,
                                                    std::span<const std::byte>& payload) noexcept {
    SessionHead head;
    return cut_head(message, head, payload) && parse(head, header);
}

/// Whose session it is. Zeroes: nobody yet.
struct SessionName {
    std::array<std::uint64_t, 2> bits{};
    [[nodiscard]] static SessionName random();
    [[nodiscard]] bool is_none() const noexcept { return bits[0] == 0 && bits[1] == 0; }
    friend bool operator==(const SessionName&, const SessionName&) = default;
};

/// How a server finds which of its clients have written.
enum class Polling : std::uint8_t {
    automatic,  ///< by the server's budget of clients, see docs/messaging.md
    flag,       ///< a look at the ring of each client: where its next message will begin
    dense,   ///< a look at one byte of each client, all side by side, which the client sets after
             ///< its message
    shared,  ///< a look at offsets of each, all side by side, into a buffer that all clients write
             ///< into: for clients that the program trusts, and that ask for Transfer::shared
};
[[nodiscard]] std::string_view name_of(Polling polling) noexcept;

/// The first word of a client.
struct Hello {
    SessionName session{};         ///< of the session to go on with; none: a new one
    std::uint32_t window = 0;      ///< most requests without an answer
    bool resumes = false;          ///< keep the session and its answers if the channel breaks
    std::uint64_t next_id = 1;     ///< of the first request that was never sent
    std::uint64_t max_answer = 0;  ///< bytes of payload
    bool reads_large = false;      ///< answers may be announced, and so may its requests
    bool batches = false;          ///< answers may come in batches
};
/// The first word of a server.
struct Welcome {
    SessionName session{};
    bool resumed = false;      ///< it is the session that was asked for
    std::uint32_t client = 0;  ///< number of the client's place
    std::uint32_t generation = 0;
    std::uint32_t window = 0;  ///< at most what was asked for
    Polling polling = Polling::flag;
    std::uint64_t mailbox = 0;  ///< dense: the address of the client's byte
    std::uint32_t mailbox_rkey = 0;
    std::uint32_t server = 0;       ///< whose the session is, of a ServerGroup
    std::uint64_t max_request = 0;  ///< bytes of payload
    bool reads_large = false;       ///< both ends may announce; only if the hello allows it
    bool batches = false;           ///< both ends may send batches; only if the hello allows it
};
/// Where a message lies that its sender keeps until it has been READ.
struct Announcement {
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
    bool is_in_order = false;  ///< messages after it wait for it
    std::uint64_t length = 0;  ///< bytes of payload
};
inline constexpr std::size_t hello_bytes = 48;
inline constexpr std::size_t welcome_bytes = 64;
inline constexpr std::size_t announcement_bytes = 24;
/// As many may be announced to one receiver before it has said that they are READ.
inline constexpr std::size_t most_announced = 256;
inline constexpr std::uint32_t largest_window = 4096;
/// Requests of one batch.
inline constexpr std::uint32_t most_in_batch = 64;

[[nodiscard]] std::array<std::byte, hello_bytes> pack(const Hello& hello) noexcept;
[[nodiscard]] std::array<std::byte, welcome_bytes> pack(const Welcome& welcome) noexcept;
[[nodiscard]] std::array<std::byte, announcement_bytes> pack(const Announcement& one) noexcept;
/// None: no peer that keeps to the protocol sends this.
[[nodiscard]] std::optional<Hello> parse_hello(std::span<const std::byte> payload) noexcept;
[[nodiscard]] std::optional<Welcome> parse_welcome(std::span<const std::byte> payload) noexcept;
[[nodiscard]] std::optional<Announcement> parse_announcement(
    std::span<const std::byte> payload) noexcept;

}  // namespace millrace::message
