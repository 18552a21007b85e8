// What only an expert or a study sets of a server, a client or a dispatcher of messages: the
// `tuning` of ServerOptions and ClientOptions. Each value is one that was measured, or a limit that
// few programs meet.
//
//     options.tuning.carrier = ring::Carrier::post;
//
// Sources: work 001, section 4.2 (the shared buffer); work 004, sections 3, 4 and 8 (receives, and
// how requests are posted).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "millrace/base/language.hpp"
#include "millrace/message/detail/mailbox_scan.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/carrier.hpp"

namespace millrace::message {

struct Tuning {
    // --- both ends

    /// What the two ends are to each other. The handshake refuses a peer that says something else,
    /// and tells it so. For libraries that make another kind of server of a message server, as
    /// rpc::Server and kv::Server do. The text stays where it is for as long as the server, or the
    /// client, is there.
    std::string_view service = "message server";
    /// What carries frames, and credit for them: stores or requests (ring/carrier.hpp). Only rc.
    ring::Carrier carrier = ring::Carrier::automatic;
    PostingHabits posting{};
    /// How a message travels that is longer than others. A server whose `admission` limits
    /// registered bytes announces none, as memory for them is registered while clients talk.
    LargeMessages large{};
    /// Bytes of a receive, where messages come by SEND: a power of two from 128 B to 64 KiB, and at
    /// most `ring_bytes`. The peer may have `ring_bytes / slot_bytes` messages under way (1,024 at
    /// most). A longer message comes in pieces, and is put together.
    std::size_t slot_bytes = 512;

    // --- servers

    /// Whether clients may choose that requests, or answers, travel by SEND. A client that asks for
    /// what it may not have is refused with the reason.
    bool requests_by_send = true;
    bool answers_by_send = true;
    /// Where requests by SEND land. `shared` needs Protection::trusted.
    Receives receives = Receives::own;
    /// Receives of all clients together, 16 to 32,768: of Receives::shared, whose clients wait
    /// while there is none, and of clients by ud, whose packets are lost then and sent again.
    std::uint32_t shared_receives = 1024;
    /// Only Polling::shared: bytes of the buffer that all clients write into, 4 KiB to 1 GiB. In a
    /// larger one two packets meet more rarely, of which one is sent again.
    std::size_t shared_bytes = std::size_t{4} << 20;
    /// Only Polling::shared: packets that one client may have in that buffer, a power of two from 1
    /// to 64. A packet has at most `ring_bytes / 16` bytes. The server scans 8 bytes for each.
    std::uint32_t shared_packets = 8;
    /// Polling::dense, and Polling::shared: what scans the bytes that say who has written. One that
    /// this processor lacks is refused. Not given: the fastest that it has. Work 001,
    /// section 4.2.3.
    std::optional<ScanKernel> scan{};
    /// The largest ring for answers that a client may have, in bytes.
    std::size_t max_client_ring_bytes = std::size_t{1} << 20;
    /// Requests of one client without an answer, 1 to 4,096. A client that asks for a larger window
    /// gets this one.
    std::uint32_t max_window = 1024;
    /// Bytes of answers that wait for one client, LargeMessages::max_bytes not included. While more
    /// wait, the server takes no request of that client.
    std::size_t max_waiting_bytes = std::size_t{1} << 20;
    /// Bytes of answers that are kept for one session that resumes.
    std::size_t max_kept_bytes = std::size_t{1} << 20;
    /// Bytes of requests of all clients that wait because of their low priority (rpc::Priority). A
    /// request that finds no room is served in its turn.
    std::size_t max_put_off_bytes = std::size_t{1} << 20;
};

}  // namespace millrace::message
