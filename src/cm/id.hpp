// What the connection manager knows of one rdma_cm_id, and the channel that its events go to. Held
// by the Manager, under its lock.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "../soft/system/descriptor.hpp"
#include "address.hpp"
#include "connection.hpp"
#include "ports.hpp"

namespace millrace::cm {

struct Channel;

enum class IdState : std::uint8_t {
    idle,
    bound,
    address_resolved,
    route_resolved,
    listening,
    connecting,    ///< and connected
    disconnected,
};

/// What its socket is at the moment. A port that was taken becomes one of the others.
enum class SocketUse : std::uint8_t {
    none,
    port,      ///< the port is taken
    listener,  ///< watched for others that connect
    carrier,   ///< watched for MADs, and for the other end to go
    gone,      ///< the other end has gone
};

struct Id {
    std::uint32_t handle = 0;    ///< librdmacm's name of it
    Channel* channel = nullptr;  ///< null: its request waits for the program to take it
    std::uint64_t uid = 0;       ///< librdmacm's pointer; 0: the program does not want events yet
    std::uint32_t events_reported = 0;

    Realm realm;
    ibv_qp_type type = IBV_QPT_RC;
    IdState state = IdState::idle;
    Address source;
    Address destination;
    bool has_device = false;  ///< its address says which device
    bool has_path = false;
    PortOptions port_options;
    std::uint8_t type_of_service = 0;
    /// RDMA_OPTION_ID_ACK_TIMEOUT: of its queue pair, an exponent of 4.096 µs.
    std::optional<std::uint8_t> ack_timeout;
    std::uint32_t requests_left = 0;  ///< of a listener: the backlog

    std::uint32_t starting_psn = 0;
    soft::Descriptor socket;
    SocketUse socket_use = SocketUse::none;
    std::uint64_t watch = 0;  ///< by which the engine names its socket
    std::optional<Connection> connection;
    std::optional<Time> deadline;  ///< as the Manager has noted it
    /// Nobody listens where it wants to connect: what it said, and until when to try again.
    std::optional<Mad> unheard;
    Time refused_at{};

    /// Of a packet on its way: half of the time in which it has to be acknowledged.
    [[nodiscard]] std::uint8_t life_time() const noexcept {
        const int exponent = ack_timeout.value_or(0);
        return exponent == 0 ? packet_life_time : static_cast<std::uint8_t>(exponent - 1);
    }
};

/// A multicast group that an id's program has joined.
struct Membership {
    Id* id = nullptr;
    std::uint64_t uid = 0;  ///< librdmacm's pointer
    std::uint32_t events_reported = 0;
};

struct QueuedEvent {
    rdma_ucm_event_resp response{};
    Id* about = nullptr;          ///< whose count of reported events goes up: a listener's, too
    std::unique_ptr<Id> request;  ///< of CONNECT_REQUEST: the id that it will be
    Membership* membership = nullptr;  ///< of MULTICAST_JOIN: its count goes up, too
};

/// What a program opened in place of /dev/infiniband/rdma_cm.
struct Channel {
    int descriptor = -1;  ///< an eventfd, readable while an event is queued; the program's
    std::deque<QueuedEvent> events;
    std::set<Id*> ids;
};

}  // namespace millrace::cm
