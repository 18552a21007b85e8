// Datagrams on a shaped link: what a UD queue pair has sent and has not arrived yet. Its bytes are
// copied when it is posted, it completes when it has left, and the sender's process delivers it
// when it arrives. Owned by the sender of datagrams, which asks what is due. docs/soft/links.md.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "datagram/datagram_target.hpp"
#include "system/counters.hpp"
#include "transport/cable_end.hpp"

namespace millrace::soft {

/// Who a datagram is for.
struct DatagramAddress {
    enum class Kind : std::uint8_t { nobody, queue_pair, group };
    Kind kind = Kind::nobody;
    std::uint32_t qpn = 0;
    ibv_gid group{};
};

/// What has arrived. The bytes stay until the next `add`.
struct LandedDatagram {
    DatagramAddress to;
    DatagramMessage message;
};

/// What has left, and is to be completed.
struct LeftDatagram {
    std::uint32_t slot = 0;
    std::uint32_t bytes = 0;
};

/// Everything by who holds the queue pair's send side, but `waits_for`.
class DatagramFlights final : public CableEnd {
  public:
    /// At most `entries` are in flight, of which `slots` may still be the program's.
    DatagramFlights(std::function<void()> serve, std::shared_ptr<Cable> cable, const ibv_qp& qp,
                    Counters& counters, std::uint32_t entries, std::uint32_t slots);

    /// The request in send queue slot `slot` leaves in its turn. There is room for it.
    void add(const DatagramMessage& message, const DatagramAddress& to, std::uint32_t slot,
             bool signaled, std::uint32_t bytes) noexcept;
    /// When the request in `slot` comes to its turn, it fails.
    void add_failure(std::uint32_t slot, ibv_wc_status status) noexcept;

    /// The next one that has left by `now` and is to be completed. False: there is none.
    [[nodiscard]] bool take_left(std::int64_t now, LeftDatagram& left) noexcept;
    /// The next one that has arrived by `now`. False: there is none.
    [[nodiscard]] bool take_landed(std::int64_t now, LandedDatagram& landed) noexcept;
    /// When both have nothing more: sees to it that somebody looks when something is due. What the
    /// next one fails with, if it does now.
    [[nodiscard]] ibv_wc_status expect_next(std::int64_t now) noexcept;

    /// The queue pair goes to an error, and what has left was taken: the others never will.
    void ground() noexcept;
    /// So many did not.
    [[nodiscard]] std::uint32_t grounded() const noexcept { return grounded_; }
    /// Everything posted is complete.
    [[nodiscard]] bool released_all() const noexcept { return released_ == tail_; }
    /// It sends again. What is in the air stays there.
    void restart() noexcept;

    [[nodiscard]] bool waits_for(std::int64_t now) const noexcept override {
        return first_arrival_.load(std::memory_order_relaxed) <= now;
    }
    [[nodiscard]] bool completed_has_landed() const noexcept override { return head_ == released_; }

  private:
    struct InAir {
        std::int64_t departure;
        DatagramAddress to;
        std::uint32_t qkey;
        std::uint32_t immediate;
        std::uint32_t flags;
        std::uint32_t bytes;    ///< as the completion says
        std::uint32_t carried;  ///< in the buffer
        std::uint32_t slot;
        std::uint32_t landings;  ///< still to come
        std::uint32_t buffer;
        ibv_wc_status status;
        bool signaled;
        bool global;
        ibv_grh grh;
    };
    struct Landing {
        std::int64_t arrival;
        std::uint32_t position;
    };
    struct Later {
        [[nodiscard]] bool operator()(const Landing& a, const Landing& b) const noexcept {
            if (a.arrival != b.arrival) return a.arrival > b.arrival;
            return static_cast<std::int32_t>(a.position - b.position) > 0;
        }
    };
    [[nodiscard]] InAir& at(std::uint32_t position) const noexcept {
        return in_air_[position & mask_];
    }
    [[nodiscard]] std::byte* buffer(std::uint32_t number) const noexcept {
        return bytes_.get() + std::size_t{number} * datagram_mtu;
    }
    /// When it arrives, once or, in mode `faulty`, otherwise.
    void set_off(std::uint32_t position, std::int64_t arrival) noexcept;
    void expect_landing(std::uint32_t position, std::int64_t arrival) noexcept;
    void pass_landed() noexcept;
    /// May the next one be completed once it has left?
    [[nodiscard]] bool may_release() const noexcept;
    void expect() noexcept;

    const ibv_qp& qp_;
    Counters& counters_;
    const std::uint32_t mask_;
    const std::uint32_t ahead_;  ///< so many may be complete and still in flight
    const std::unique_ptr<InAir[]> in_air_;
    const std::unique_ptr<std::byte[]> bytes_;  ///< of which only what is used is touched
    std::vector<std::uint32_t> free_;           ///< buffers; the last used is taken first
    std::vector<Landing> landings_;             ///< a heap, the next one first
    std::atomic<std::int64_t> first_arrival_{cable_never};
    std::uint32_t head_ = 0;      ///< oldest that has not landed
    std::uint32_t released_ = 0;  ///< next to be completed
    std::uint32_t tail_ = 0;
    std::uint32_t grounded_ = 0;
    bool failing_ = false;  ///< one that waits for its turn will fail, and all after it
    std::int64_t last_departure_ = 0;
    std::int64_t last_arrival_ = 0;
};

}  // namespace millrace::soft
