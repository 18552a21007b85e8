// One connection of the connection manager: who said what to whom, and what its program is told.
// Pure state: no sockets, no clock, no thread, no lock, and no allocation. Called by whoever has
// the program's commands, the carrier of MADs and the time; one caller at a time.
//
//        active                     passive
//   connect   REQ ------------->  CONNECT_REQUEST
//                                 accept
//   CONNECT_RESPONSE <------- REP
//   confirm   RTU ------------->  ESTABLISHED
//     ...                           ...
//   disconnect DREQ ----------->  DISCONNECTED
//                                 disconnect
//   DISCONNECTED <----------- DREP
//   (timewait)                    (timewait)
//   TIMEWAIT_EXIT                 TIMEWAIT_EXIT
//
//   resolve   SIDR_REQ -------->  CONNECT_REQUEST
//                                 answer
//   ESTABLISHED <-------- SIDR_REP
//
// REJ is the answer of either side to whatever it does not want; a REQ, a REP, a DREQ or a SIDR_REQ
// without an answer is sent again, `most_retries` times, and then given up. A REQ that comes again
// while the program thinks about it is answered by an MRA, which makes the peer wait longer; one
// that comes again after the REP, by the REP; a REP that comes again, by the RTU, or an MRA where
// there was none yet. None of these is an event.
//
// Invariants.
// - Every call answers at most one MAD and at most one event.
// - Every event is given at most once, and TIMEWAIT_EXIT only after DISCONNECTED. The first that
// the
//   program of the active side hears is CONNECT_RESPONSE (datagrams: ESTABLISHED), REJECTED or
//   UNREACHABLE, and it does hear one of them, if it does not close before.
// - The passive side is established only if the active one was.
// - Every state in which an answer is awaited, and timewait, has a deadline, and a bounded number
// of
//   them: the wait ends. Without one are those in which the program is awaited, or the connection
//   is used.
// - After close() there is no event.
//
// What is as in the kernel's cm.c and cma.c, which programs know: the statuses (below), the events
// for each MAD in each state, the timeouts, that the DREP waits for the program's own disconnect.
// What is not: whoever gives up a REQ or a REP sends a REJ, so that the other side is told, and
// says it again if it is asked again; a REQ that comes again after the REP is answered, and so is a
// REP that comes again after this end's own DREQ; DREQs that cross are answered at once, as both
// programs have disconnected; a DREQ that close() sends is repeated until it is answered.
//
// The statuses of events: UNREACHABLE has -ETIMEDOUT, of a SIDR_REQ that was refused the
// SidrStatus; REJECTED the RejectReason; DISCONNECTED 0, or -ETIMEDOUT where the peer did not
// answer the DREQ; all others 0. CONNECT_ERROR is the program's library's, or its own, and never
// comes from here.
//
// The carrier's hang-up stands for what the kernel says in the name of a process that died: REJ to
// one that waits for an answer, DREQ to a connection, SidrStatus::rejected to a SIDR_REQ.
//
// Source: InfiniBand Architecture Specification, volume 1, chapter 12.9 (states and timeouts).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "mad.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::cm {

using Time = base::Clock::time_point;

/// Exponents of 4.096 µs, as rdma_cm has them.
inline constexpr std::uint8_t response_timeout = 20;  ///< 4.3 s: for the peer's answer
inline constexpr std::uint8_t service_timeout = 24;   ///< 69 s: what an MRA asks for
inline constexpr std::uint8_t packet_life_time = 16;  ///< 0.3 s: of a packet on its way, RoCE
inline constexpr std::uint8_t most_retries = 15;

/// What the program is told: the numbers of rdma_cm_event_type.
enum class EventKind : std::uint8_t {
    connect_request = 4,
    connect_response = 5,
    unreachable = 7,
    rejected = 8,
    established = 9,
    disconnected = 10,
    timewait_exit = 15,
};

/// The fields that its kind has, as ucma reports them. Of REQ and REP, what the peer can serve and
/// what it wants have changed places: `responder_resources` is what this end is asked to serve.
struct Event {
    EventKind kind = EventKind::connect_request;
    int status = 0;
    std::uint32_t qpn = 0;  ///< the peer's; connect_request, connect_response, established by SIDR
    std::uint32_t q_key = 0;  ///< established by SIDR
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    bool flow_control = false;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
    bool srq = false;
    /// All that the peer's MAD had room for, without the AddressHeader.
    std::uint8_t private_size = 0;
    PrivateData<most_private_bytes> private_data{};

    [[nodiscard]] std::span<const std::uint8_t> private_bytes() const noexcept {
        return {private_data.data(), private_size};
    }
};

/// What a call led to. First the MAD is to be sent, then the event to be given.
struct Step {
    /// Commands: 0, or the errno that the command fails with (positive); then nothing has changed.
    int error = 0;
    std::optional<Mad> mad;
    std::optional<Event> event;
};

/// What the program says of its own end when it connects or accepts (rdma_conn_param).
struct Terms {
    std::uint32_t qpn = 0;           ///< 24 bits
    std::uint32_t starting_psn = 0;  ///< 24 bits, random: of the packets that the peer will send
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    bool flow_control = false;
    std::uint8_t retry_count = 0;      ///< more than 7 is 7; accept: the REQ's counts
    std::uint8_t rnr_retry_count = 0;  ///< more than 7 is 7
    bool srq = false;
    std::span<const std::uint8_t> private_data;  ///< copied
};

/// What connecting needs besides. Of `path`, connect() sets local_ack_timeout and subnet_local, and
/// where packets are routed (hop_limit > 1) both LIDs.
struct Destination {
    std::uint64_t service_id = 0;
    AddressHeader addresses;
    TransportType transport = TransportType::rc;  ///< rc or uc
    std::uint16_t partition_key = 0xffff;
    std::uint8_t path_mtu = 0;  ///< ibv_mtu
    std::uint8_t life_time = packet_life_time;
    Path path;
};

/// What INIT_QP_ATTR answers, seen from this end. (min_rnr_timer is 0; remote access is WRITE, and
/// READ and atomics where responder_resources is not 0.)
struct QueuePairFacts {
    TransportType transport = TransportType::rc;
    std::uint32_t local_qpn = 0;
    std::uint32_t remote_qpn = 0;  ///< dest_qp_num
    /// rq_psn. Known when this end has connected or accepted: whoever moves a queue pair to RTR
    /// before it accepts, as librdmacm does, takes the starting PSN that it will accept with.
    std::uint32_t receive_psn = 0;
    std::uint32_t send_psn = 0;  ///< sq_psn
    std::uint8_t path_mtu = 0;
    std::uint8_t responder_resources = 0;  ///< max_dest_rd_atomic
    std::uint8_t initiator_depth = 0;      ///< max_rd_atomic
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
    std::uint8_t timeout = 0;  ///< of the queue pair
    std::uint16_t partition_key = 0;
    Path path;  ///< from this end to the peer
};

enum class State : std::uint8_t {
    idle,                 ///< nothing was said yet
    request_sent,         ///< REQ; waits for REP
    request_received,     ///< waits for the program's accept or reject
    response_sent,        ///< REP; waits for RTU
    response_received,    ///< waits for the program's confirm or reject
    established,          ///<
    disconnect_sent,      ///< DREQ; waits for DREP
    disconnect_received,  ///< waits for the program's disconnect
    timewait,             ///< packets of the connection may still be on their way
    resolve_sent,         ///< SIDR_REQ; waits for SIDR_REP
    resolve_received,     ///< waits for the program's answer
    resolve_answered,     ///< SIDR_REP; repeats it if asked again
    over,                 ///< nothing more will be said
};

class Connection {
  public:
    /// `comm_id`: names this end of it, not 0, and no other connection of this host until it is
    /// over. `guid`: of the device. An idle connection becomes the active side by connect() or
    /// resolve(), the passive one by a REQ or SIDR_REQ in receive().
    Connection(std::uint32_t comm_id, std::uint64_t guid) noexcept
        : comm_id_{comm_id}, guid_{guid} {}

    // Commands of the program. An error is EINVAL: private data that is too long, or a state in
    // which the command means nothing.

    /// RC, UC: sends the REQ. `terms.private_data`: at most connect_private_bytes.
    Step connect(const Destination& destination, const Terms& terms, Time now) noexcept;
    /// UD: sends the SIDR_REQ. `private_data`: at most resolve_private_bytes.
    Step resolve(std::uint64_t service_id, const AddressHeader& addresses,
                 std::uint16_t partition_key, std::span<const std::uint8_t> private_data,
                 Time now) noexcept;
    /// Answers a REQ by the REP. `private_data`: at most rep_private_bytes.
    Step accept(const Terms& terms, Time now) noexcept;
    /// Answers a REP by the RTU: the program's queue pair can send. (ucma's ACCEPT, active side.)
    Step confirm(Time now) noexcept;
    /// Answers a SIDR_REQ, by success (`qpn`, `q_key`) or a refusal. `private_data`: at most
    /// sidr_rep_private_bytes.
    Step answer(SidrStatus status, std::uint32_t qpn, std::uint32_t q_key,
                std::span<const std::uint8_t> private_data) noexcept;
    /// Refuses a REQ or a REP, or takes an own REQ or REP back. `private_data`: at most
    /// rej_private_bytes.
    Step reject(RejectReason reason, std::span<const std::uint8_t> private_data, Time now) noexcept;
    /// Sends the DREQ, or the DREP to one that came; elsewhere it does nothing and succeeds, as
    /// rdma_disconnect does. EINVAL before there was anything to disconnect.
    Step disconnect(Time now) noexcept;
    /// The passive program saw a message on the queue pair, so the RTU is lost: ESTABLISHED.
    /// EISCONN where it is established already.
    Step establish(Time now) noexcept;
    /// The program destroys its id. The connection says its last word, lingers until is_over(), and
    /// gives no event. Who forgets it earlier lets the carrier say it, by a hang-up.
    Step close(Time now) noexcept;

    // What comes from outside.

    /// A MAD came. What is for another connection, late, repeated beyond use, or makes no sense, is
    /// ignored: the Step is empty.
    Step receive(const Mad& mad, Time now) noexcept;
    /// The carrier's other end is gone: its process died, or closed. No MAD is sent any more.
    Step hang_up(Time now) noexcept;
    /// The deadline may have passed. Does nothing before it.
    Step expire(Time now) noexcept;
    /// When expire() is due; nothing, if no time is awaited.
    [[nodiscard]] std::optional<Time> deadline() const noexcept { return deadline_; }

    // What there is to know.

    [[nodiscard]] State state() const noexcept { return state_; }
    [[nodiscard]] std::uint32_t comm_id() const noexcept { return comm_id_; }
    /// Nothing more will be sent or awaited, and the queue pair's number may be used again.
    [[nodiscard]] bool is_over() const noexcept { return state_ == State::over; }
    /// Of RC and UC. Which ones mean something: those of the path and this end from has_path() on,
    /// the peer's from has_peer() on.
    [[nodiscard]] const QueuePairFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] bool has_path() const noexcept;  ///< INIT_QP_ATTR answers for INIT
    [[nodiscard]] bool has_peer() const noexcept;  ///< and for RTR and RTS
    /// The MAD is for this connection, by its comm ids. A REQ or SIDR_REQ: it has come before.
    [[nodiscard]] bool is_for(const Mad& mad) const noexcept;
    /// A REQ or REP of another connection names the queue pair that this one's peer had: the peer
    /// has forgotten this one. Who sees that answers refuse(…, stale_connection), and calls
    /// disconnect() here.
    [[nodiscard]] bool is_stale_by(const Mad& mad) const noexcept;

  private:
    using Wait = std::chrono::milliseconds;

    // One for each message; only those that are for this connection.
    Step take(const Mad& mad, const Req& req, Time now) noexcept;
    Step take(const Mad& mad, const Mra& mra, Time now) noexcept;
    Step take(const Mad& mad, const Rej& rej, Time now) noexcept;
    Step take(const Mad& mad, const Rep& rep, Time now) noexcept;
    Step take(const Mad& mad, const Rtu& rtu, Time now) noexcept;
    Step take(const Mad& mad, const Dreq& dreq, Time now) noexcept;
    Step take(const Mad& mad, const Drep& drep, Time now) noexcept;
    Step take(const Mad& mad, const SidrReq& req, Time now) noexcept;
    Step take(const Mad& mad, const SidrRep& rep, Time now) noexcept;

    Step become_passive(const Mad& mad, const Req& req) noexcept;
    Step become_passive(const Mad& mad, const SidrReq& req) noexcept;
    Step repeat_refusal() const noexcept;

    [[nodiscard]] Mad rej(RejectReason reason,
                          std::span<const std::uint8_t> private_data) const noexcept;
    [[nodiscard]] Mad mra(Answered answered) const noexcept;
    [[nodiscard]] Mad rtu() const noexcept;
    [[nodiscard]] Mad dreq() const noexcept;
    [[nodiscard]] Mad drep() const noexcept;
    [[nodiscard]] std::uint64_t own_transaction() const noexcept;

    /// Into the Step, where the carrier and the program are still there.
    void say(Step& step, const Mad& mad) const noexcept;
    void tell(Step& step, const Event& event) const noexcept;
    /// Says it now, and again until the answer has come.
    void ask(Step& step, State next, const Mad& mad, Time now) noexcept;
    /// Nobody answered.
    Step give_up(Time now) noexcept;
    void rest(State next) noexcept;  ///< where nothing is awaited of the peer
    void enter_timewait(Time now) noexcept;
    /// Says no, and remembers that it did.
    void refuse_peer(Step& step, const Mad& refusal, State next, Time now) noexcept;

    std::uint32_t comm_id_;
    std::uint64_t guid_;
    State state_ = State::idle;
    bool is_passive_ = false;
    bool noted_ = false;         ///< an MRA has come for what was asked
    bool disconnected_ = false;  ///< DISCONNECTED was given
    bool closed_ = false;
    bool cut_ = false;  ///< the carrier hung up
    std::uint32_t remote_comm_id_ = 0;
    std::uint64_t remote_guid_ = 0;
    std::uint64_t transaction_ = 0;  ///< of what this end answers
    std::uint64_t service_id_ = 0;
    std::uint8_t retries_ = 0;  ///< of each MAD that waits for an answer
    std::uint8_t retries_left_ = 0;
    Wait patience_{0};  ///< for each answer
    Wait wait_{0};      ///< for this one
    std::optional<Time> deadline_;
    Mad kept_;  ///< what is sent again, if asked or not answered
    QueuePairFacts facts_;
};

/// What is answered to a MAD that is for no connection: a REQ is refused for `reason` (nobody
/// listens, if nothing is said), a SIDR_REQ as unsupported, a REP only with a `reason`; a DREQ has
/// a DREP. Nothing, to all others.
[[nodiscard]] std::optional<Mad> refuse(const Mad& mad,
                                        std::optional<RejectReason> reason = std::nullopt) noexcept;

}  // namespace millrace::cm
