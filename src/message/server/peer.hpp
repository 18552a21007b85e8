// A client as its server has it: at a place, in one of five phases.
//
//   vacant    nobody is there
//   joining   its channel stands, and it has not said hello yet
//   joined    it is served
//   away      its channel broke, and its session is kept for it (only if it asked for that)
//   refused   it has been told why, and is to close
//
// Its channel is awake or asleep (connect/readiness.hpp):
//
//   asleep    the client was told that nobody looks: it rings, and that makes the hub readable
//   awake     it does not ring; it is one of those that Rest looks at, and falls asleep when the
//             server does
//
// A client by packets or a socket (lane/network_lane.hpp) has no ring to look at, and nobody rings.
// The hosts of all such lanes tell which client may have written (Arrivals), and the server finds
// such a place by the same scan as the others, until a look has found nothing more. It is neither
// asleep nor awake.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lane/any_lane.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/server.hpp"
#include "server/peer_session.hpp"

namespace millrace::message {

struct Peer {
    enum class Phase : std::uint8_t { vacant, joining, joined, away, refused };

    Peer(std::uint32_t its_place, std::uint32_t its_server) noexcept
        : id{its_place, 0, its_server} {}

    ClientId id;
    Phase phase = Phase::vacant;
    bool is_plain = false;     ///< joined, by rings, and its session does not resume
    bool batches = false;      ///< both ends send several requests, or answers, in one message
    bool is_paused = false;    ///< too many answers wait: its requests are not taken
    bool is_active = false;    ///< Rest has it as one that is awake
    bool is_clogged = false;   ///< Answers has it as one for which some wait
    bool is_fetching = false;  ///< Announced has it
    bool is_by_send = false;   ///< Arrivals has it
    AnyLane line;
    PeerSession session;
    std::uint64_t max_answer = 0;
    /// Of the entries of the message in front, those of so many bytes are served.
    std::size_t batch_at = 0;
    verbs::RemoteAddress box{};  ///< its byte, if it sets one
    connect::Hub::Id member{};
    base::Clock::time_point since{};  ///< of its phase
    HeldPart owed_part{};             ///< of Lane::owed_bytes

    /// How far something of it had come at a time.
    struct Progress {
        std::uint64_t at = 0;
        base::Clock::time_point since{};
    };
    Progress flushed{};                     ///< Lane::flushed_bytes, while it is clogged
    Progress fetched{};                     ///< Lane::fetch_progress, while it is fetching
    Begun begun{};                          ///< the message of which a part had come …
    base::Clock::time_point begun_since{};  ///< … then

    /// It has a ring that somebody may look at.
    [[nodiscard]] bool has_ring() const noexcept { return line.ring() != nullptr; }
    /// Only then.
    [[nodiscard]] RingLane& ring() const noexcept { return *line.ring(); }
};

}  // namespace millrace::message
