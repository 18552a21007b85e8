// The responder of a reliable connection (RC): takes the peer's requests in the order of their
// PSNs, has them done, and answers. Pure state: no socket, no clock, no lock, no allocation after
// construction. Called by the queue pair's receive side; one caller at a time.
//
//   arrives      before the expected PSN        the expected PSN      after it
//   SEND, WRITE  acknowledged again             done, acknowledged    refused once a gap; not at
//   READ         read again, by its own key     answered              all while the receiver was
//   atomic       answered from the replay ring  done once, answered   not ready
//
// Answers wait in a queue, in PSN order: READs in parts, as the outlet has room, then the one
// acknowledgement, which is for everything before it. It waits for more to acknowledge, at most
// `acknowledgement_delay`, unless `send` is told not to.
//
// Invariants.
// - Only the packet with the expected PSN is done, so everything is done once and in order.
// - An acknowledgement never overtakes the answer to an earlier READ or atomic: it would say that
//   this one was lost.
// - The queue and the ring are `most_reads` long each; a peer that asks for more at once breaks its
//   promise (max_dest_rd_atomic), and repeated READs beyond it are dropped.
//
// Source: InfiniBand Architecture Specification, volume 1, chapter 9.7 (reliable service).
#pragma once

#include <cstdint>
#include <memory>

#include "assembly.hpp"
#include "outlet.hpp"
#include "packet.hpp"
#include "psn.hpp"
#include "sides.hpp"

namespace millrace::roce {

inline constexpr std::int64_t acknowledgement_delay = 20'000;  ///< nanoseconds

/// Of a queue pair at RTR.
struct ResponderAttributes {
    std::uint32_t destination = 0;  ///< the peer's queue pair
    std::uint32_t first_psn = 0;    ///< rq_psn
    std::uint32_t mtu = 1024;       ///< bytes: a power of two, 256 to 4096
    std::uint16_t partition_key = default_partition_key;
    std::uint8_t min_rnr_timer = 12;  ///< 5 bits, as ibv_modify_qp takes it
    std::uint32_t most_reads = 1;     ///< max_dest_rd_atomic; 0: READs and atomics are refused
};

struct ResponderCounts {
    std::uint64_t packets = 0;  ///< that came
    std::uint64_t duplicates = 0;
    std::uint64_t gaps = 0;  ///< told to the peer
    std::uint64_t not_ready = 0;
    std::uint64_t dropped = 0;  ///< repeated READs and atomics that cannot be answered
};

class Responder {
  public:
    /// `most_reads`: the most that `start` will name.
    Responder(ReceiveSide& side, std::uint32_t most_reads);

    /// INIT to RTR.
    void start(const ResponderAttributes& attributes) noexcept;
    /// What may change at RTS: `min_rnr_timer`.
    void change(const ResponderAttributes& attributes) noexcept;
    /// An error of the queue pair, or RESET: nothing is done or answered any more.
    void stop() noexcept { state_ = State::stopped; }

    /// A request, whose destination is this queue pair. Times as Requester's.
    void arrived(const Packet& packet, std::int64_t now) noexcept;
    /// Answers leave. `at_once`: the acknowledgement, too, though it may wait: nothing more has
    /// come. False: the outlet was full, and it is to be called again when there is room.
    bool send(std::int64_t now, Outlet& outlet, bool at_once) noexcept;
    /// An acknowledgement waits for `acknowledgement_delay` to pass, or for `at_once`.
    [[nodiscard]] bool owes_acknowledgement() const noexcept {
        return must_acknowledge_ && state_ != State::stopped;
    }
    /// When an answer is due: 0, if one waits for the outlet alone; `never`: nothing is.
    [[nodiscard]] std::int64_t next_deadline() const noexcept;

    [[nodiscard]] const ResponderCounts& counts() const noexcept { return counts_; }

  private:
    enum class State : std::uint8_t {
        stopped,
        running,
        failing,  ///< a fatal refusal waits to leave
    };
    /// An answer to a READ or an atomic.
    struct Answer {
        bool is_read;
        bool is_repeated;
        std::uint32_t psn;  ///< of the next packet
        std::uint32_t message_sequence;
        std::uint32_t remote_key;
        std::uint32_t length;   ///< of the READ
        std::uint32_t offset;   ///< of the next packet
        std::uint64_t address;  ///< of the READ
        std::uint64_t original;
    };
    /// A READ or an atomic that was done: it may come again.
    struct Replay {
        bool is_read;
        std::uint32_t psn;
        std::uint32_t remote_key;  ///< of the READ, as what follows
        std::uint32_t length;
        std::uint64_t address;
        std::uint64_t original;  ///< of the atomic
    };

    void execute(const Packet& packet, std::int64_t now) noexcept;
    void execute_read(const Packet& packet) noexcept;
    void execute_atomic(const Packet& packet) noexcept;
    void repeated(const Packet& packet, std::int64_t now) noexcept;
    void repeat_read(const Packet& packet) noexcept;
    void repeat_atomic(const Packet& packet) noexcept;
    void done(std::uint32_t packets) noexcept;
    void acknowledge(std::int64_t now) noexcept;
    void missed(std::uint32_t psn) noexcept;
    void refuse(Outcome outcome) noexcept;
    void refuse(Refusal why) noexcept;
    [[nodiscard]] bool will_answer(std::uint32_t psn) const noexcept;
    [[nodiscard]] bool has_room(bool is_repeated) const noexcept;
    void remember(const Replay& done) noexcept;
    [[nodiscard]] const Replay* find_replay(const Packet& packet) const noexcept;
    void queue(const Answer& answer) noexcept;
    void answered() noexcept;
    [[nodiscard]] std::uint32_t packets_of(std::uint32_t length) const noexcept;
    bool send_answers(Outlet& outlet) noexcept;
    bool send_read(Answer& answer, Outlet& outlet) noexcept;
    bool send_atomic(const Answer& answer, Outlet& outlet) noexcept;
    bool send_acknowledgement(std::uint8_t syndrome, std::uint32_t psn, Outlet& outlet) noexcept;
    void head(Packet& packet, Kind kind, std::uint32_t psn) const noexcept;
    [[nodiscard]] Answer& answer(std::uint32_t index) const noexcept {
        return answers_[index & answer_mask_];
    }

    ReceiveSide& side_;
    Assembly assembly_;
    ResponderAttributes attributes_;
    State state_ = State::stopped;
    std::uint32_t mtu_shift_ = 10;
    std::uint32_t expected_ = 0;          ///< PSN
    std::uint32_t message_sequence_ = 0;  ///< messages done

    bool awaits_repetition_ = false;  ///< of the expected PSN: no further refusal of what follows
    bool must_acknowledge_ = false;
    bool must_refuse_ = false;
    std::uint8_t refusal_ = 0;           ///< syndrome
    std::uint32_t furthest_missed_ = 0;  ///< PSN that came too early, while a refusal waits
    std::int64_t acknowledgement_due_ = never;

    std::uint32_t answer_mask_;
    std::unique_ptr<Answer[]> answers_;
    std::uint32_t answered_ = 0;  ///< indices; they wrap
    std::uint32_t asked_ = 0;
    std::uint32_t reads_waiting_ = 0;  ///< of the answers, those not repeated

    std::unique_ptr<Replay[]> replays_;
    std::uint32_t replay_slots_;
    std::uint32_t replay_count_ = 0;
    std::uint32_t next_replay_ = 0;
    ResponderCounts counts_;
};

}  // namespace millrace::roce
