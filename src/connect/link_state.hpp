// What a link owns. Filled by the handshake, used by Link. Members are destroyed in reverse order:
// the queue pair first, the socket (by which the peer learns of it) after, the device last.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "ledger.hpp"
#include "millrace/connect/link.hpp"
#include "wire.hpp"

namespace millrace::connect {

/// What lies between the two devices.
enum class Route : std::uint8_t {
    network,  ///< of RDMA adapters; or nothing is known yet
    memory,   ///< of this machine, which both soft devices reach
    wire,     ///< UDP, between soft devices or to an adapter
};

/// UDP's, of RoCE v2: adapters know no other.
inline constexpr std::uint16_t port_of_adapters = 4791;

struct Link::State {
    Place place;                       ///< of the listener's budget, given back last
    std::uint64_t reserved_bytes = 0;  ///< counted, and not allocated yet
    std::shared_ptr<Endpoint> endpoint;
    Descriptor socket;
    verbs::CompletionChannel channel;
    verbs::CompletionQueue send_queue;
    verbs::CompletionQueue receive_queue;
    verbs::CompletionQueue* given_receive_queue = nullptr;  ///< in its place, see LinkOptions
    verbs::AddressHandle way;                               ///< ud: to the peer's port
    verbs::QueuePair queue_pair;                            ///< rc, uc
    verbs::DatagramQueuePair own_datagrams;                 ///< ud, of the connecting end
    verbs::DatagramQueuePair* given_datagrams = nullptr;    ///< … of the accepting end
    struct SecondQueue {
        enum class Stage : std::uint8_t { told, connected, open };
        verbs::CompletionQueue completions;
        verbs::QueuePair pair;
        verbs::QueuePairAddress own;
        Stage stage = Stage::told;
    };
    std::unique_ptr<SecondQueue> second;  ///< few links have one

    Transport transport = Transport::rc;
    Address local;
    std::string peer_name;
    Hello own;
    Hello other;
    verbs::PathOptions path;
    std::optional<verbs::WireAddress> wire;  ///< of this end
    Route route = Route::network;
    std::string why_wire;  ///< as a clause, where that is the route
    bool leaves_out_icrc = false;
    bool own_writes_in_order = false;
    bool other_writes_in_order = false;

    FrameBuffer inbox;
    std::vector<std::byte> unsent;
    std::list<std::vector<std::byte>> exchanges;  ///< bodies that came before they were asked for
    std::vector<std::byte> last_words;
    PeerState peer = PeerState::alive;
    bool said_goodbye = false;
    bool out_of_step = false;  ///< an exchange ended in the middle: the socket's stream is unusable
    std::string lost_because;
    std::string lost_remedy = "see what the peer reports";
    base::ErrorCode lost_code = base::ErrorCode::peer_lost;  ///< refused: so the peer said
    std::uint64_t last_look = 0;
    std::uint64_t look_interval = 0;  ///< in ticks

    /// What has come over the wire is answered first: a peer that waits for that shall not take it
    /// for lost. Adapters answer by themselves.
    ~State();
    /// Takes what the socket has, and with it the peer's state. Never blocks.
    void look() noexcept;
    /// Sends what it takes of what is unsent.
    void flush() noexcept;
    /// Counts against the listener's budget. Throws Error (refused), after telling the peer.
    void take(const char* attempted, const Given& more);
    /// Says so to the peer, and that nothing follows.
    [[noreturn]] void refuse(const char* attempted, base::ErrorCode code, const std::string& cause,
                             const std::string& remedy);
};

/// "10.77.0.1 port 4791", of either end of the wire.
[[nodiscard]] std::string end_of_wire(const Hello& end);
[[nodiscard]] std::uint16_t port_of_wire(const Hello& end) noexcept;

}  // namespace millrace::connect
