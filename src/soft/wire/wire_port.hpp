// This process's end of the wire: a UDP socket at an address of this host, what arrives there by
// queue pair number, and what leaves by destination. Owned by the Process; used by the adapters of
// queue pairs and datagrams, and by who polls.
//
// Who polls drains the port itself; while threads do, the engine leaves the socket alone. A child
// made by fork has none: it makes its own when it opens the device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/detail/forks.hpp"
#include "millrace/base/statistics.hpp"
#include "system/descriptor.hpp"
#include "system/spin_lock.hpp"
#include "wire/packet_trace.hpp"
#include "wire/wire_address.hpp"
#include "wire/wire_counts.hpp"
#include "wire/wire_engine.hpp"
#include "wire/wire_route.hpp"
#include "wire/wire_slots.hpp"

namespace millrace::soft {

/// A packet as it arrived, its ICRC right, or not to be checked, and taken off.
struct WirePacket {
    std::span<const std::uint8_t> bytes;  ///< from the BTH to the padding; only during the call
    UdpAddress from;
    std::int64_t now;  ///< CLOCK_MONOTONIC, ns
};

/// What stands for a queue pair at the port.
class WireReceiver {
  public:
    /// By the thread that drains, one at a time. May not wait for a lock whose holder removes
    /// receivers.
    virtual void arrived(const WirePacket& packet) noexcept = 0;
    /// When acknowledgements leave.
    enum class Answers : std::uint8_t {
        at_once,
        with_next,  ///< with what the program posts next, as it polls: they need not go by
                    ///< themselves
        late,       ///< at once, as nothing was posted meanwhile, and no poll came either
    };
    /// Its packets have no ICRC to be checked. Any thread.
    [[nodiscard]] bool goes_unchecked() const noexcept {
        return unchecked_.load(std::memory_order_relaxed);
    }
    /// After the last packet of a batch, if there was one for it. True: an acknowledgement waits
    /// for what is posted next; this is called again at the next poll.
    virtual bool settled(std::int64_t now, Answers answers) noexcept = 0;

  protected:
    ~WireReceiver() = default;
    void go_unchecked() noexcept { unchecked_.store(true, std::memory_order_relaxed); }

  private:
    std::atomic<bool> unchecked_{false};
};

class WirePort final : private WireWatch {
  public:
    /// As MILLRACE_WIRE says; null: it is off. Throws base::Error.
    [[nodiscard]] static std::shared_ptr<WirePort> open();
    /// Takes the public port, or where that is taken a private one. Not `off`.
    /// `slot`: the one that a node has already.
    [[nodiscard]] static std::shared_ptr<WirePort> open(
        const WireChoice& choice, std::optional<std::uint32_t> slot = std::nullopt);
    /// By `open`. Without slots `socket` is a private one.
    WirePort(const WireInterface& interface, const WireChoice& choice,
             std::unique_ptr<WireSlots> slots, Descriptor socket);
    ~WirePort();
    WirePort(const WirePort&) = delete;
    WirePort& operator=(const WirePort&) = delete;

    /// False in a child made by fork: nothing arrives or leaves.
    [[nodiscard]] bool usable() const noexcept { return usable_.load(std::memory_order_relaxed); }
    [[nodiscard]] const UdpAddress& own() const noexcept { return own_; }
    [[nodiscard]] ibv_gid gid() const noexcept { return gid_of(own_); }
    [[nodiscard]] const WireInterface& interface() const noexcept { return interface_; }
    [[nodiscard]] ibv_mtu mtu() const noexcept { return mtu_; }
    /// The address is the process's only one, as it was named.
    [[nodiscard]] bool is_alone() const noexcept { return alone_; }
    /// Bytes that the system has granted to its socket, each packet taking more than its own.
    [[nodiscard]] std::uint32_t receive_buffer() const noexcept { return receive_buffer_; }
    /// Peers of this host, too, are reached by packets.
    [[nodiscard]] bool is_always() const noexcept { return always_; }
    /// Reached by peers of its kind only, as its GID says.
    [[nodiscard]] bool is_private() const noexcept { return slots_ == nullptr; }
    /// What the node's number must leave by wire_slots; nothing: any.
    [[nodiscard]] std::optional<std::uint32_t> slot() const noexcept {
        return slots_ == nullptr ? std::nullopt : std::optional{slots_->slot()};
    }

    /// The route to a destination; shared with others who go there. Any thread. Throws
    /// std::bad_alloc.
    [[nodiscard]] std::shared_ptr<WireRoute> route(const UdpAddress& to);

    /// From here to `remove`, packets for that queue pair go to `receiver`, if they come from the
    /// address of `from` (none: from any). On the loopback, where any user may send from it, the
    /// port counts, too: only this user's processes are there. False: another one has the number,
    /// or this is a forked child. Waits for who drains: not with a lock that receivers wait for,
    /// nor from within one.
    [[nodiscard]] bool add(std::uint32_t qpn, WireReceiver& receiver,
                           const UdpAddress& from) noexcept;
    /// The receiver is not called from here on. Waits likewise.
    void remove(std::uint32_t qpn) noexcept;

    /// Takes in what has arrived and hands it on; sends nothing by itself. False: another thread is
    /// at it. Any thread of the program; does not wait.
    bool drain(std::int64_t now) noexcept;
    /// The same by who posts, and need not poll: answers to what it has sent; and sends.
    void take_answers(std::int64_t now) noexcept;
    /// The same as `drain`, and what had arrived before the call is done when it returns, also
    /// where another thread is at it: waits for that, as `add`.
    void drain_whole(std::int64_t now) noexcept;
    /// Sends what all routes have. Any thread.
    void flush() noexcept {
        if (waiting_.count() != 0) [[unlikely]]
            flush_now();
    }
    /// A thread of the program goes to sleep until something comes: from now on the engine looks.
    void program_sleeps() noexcept;
    [[nodiscard]] WireEngine& engine() noexcept { return *engine_; }

    void count(WireCount what, std::uint64_t n = 1) noexcept { counts_.add(what, n); }
    [[nodiscard]] std::uint64_t counted(WireCount what) const noexcept {
        return counts_.value(what);
    }

  private:
    friend class base::ForkWatch;
    struct Member {
        WireReceiver* receiver = nullptr;
        std::uint32_t qpn = 0;
        UdpAddress from{};
        bool has_news = false;
        bool owes = false;  ///< an acknowledgement: it is in `owing_`
    };
    struct Buffers;
    class Retry final : public WireTimer {
        void due(std::int64_t) noexcept override {}  // the round's end flushes
    };

    void become_copy() noexcept;
    [[nodiscard]] int socket() const noexcept {
        return slots_ == nullptr ? socket_.get() : slots_->socket();
    }
    void flush_now() noexcept;

    // With `draining_`.
    [[nodiscard]] Member& place_of(std::uint32_t qpn) noexcept;
    [[nodiscard]] Member* find(std::uint32_t qpn) noexcept;
    /// How many datagrams it took, of which one may be many packets.
    [[nodiscard]] unsigned take_batch(std::int64_t now, WireReceiver::Answers answers) noexcept;
    /// What was not acknowledged since the last poll.
    void acknowledge(std::int64_t now, WireReceiver::Answers answers) noexcept;
    /// What came to this slot and is another's was joined with what is this one's: no more.
    void join_no_more(std::uint32_t qpn) noexcept;
    void take(std::span<const std::uint8_t> payload, const UdpAddress& from,
              std::int64_t now) noexcept;
    [[nodiscard]] bool has_right_check(std::span<const std::uint8_t> payload,
                                       const UdpAddress& from) noexcept;

    // WireWatch
    [[nodiscard]] std::int64_t look(std::int64_t now) noexcept override;
    void answer() noexcept override;
    void round_ended(std::int64_t now) noexcept override;
    void rest() noexcept override;

    const WireInterface interface_;
    const ibv_mtu mtu_;
    const bool alone_;
    const bool always_;
    const std::unique_ptr<WireSlots> slots_;
    Descriptor socket_;
    const UdpAddress own_;
    const std::uint32_t receive_buffer_;
    std::atomic<bool> usable_{true};
    WireCounts counts_;
    const std::unique_ptr<PacketTrace> trace_;
    std::unique_ptr<base::StatisticsPage> page_;

    SpinLock draining_;  ///< the next six
    bool joins_ = true;
    const std::unique_ptr<Buffers> buffers_;
    std::vector<Member> members_;  ///< by the index of the queue pair number
    std::vector<Member*> news_;
    std::vector<Member*> owing_;
    std::atomic<bool> owes_{false};        ///< one is in `owing_`
    std::atomic<std::int64_t> polled_{0};  ///< when a thread of the program last drained
    std::atomic<int> last_looks_{0};       ///< left to a thread that goes to sleep
    std::atomic<bool> left_alone_{false};  ///< the engine does not watch the socket
    std::int64_t alone_since_ = 0;         ///< the engine's

    WaitingRoutes waiting_;
    const WireExit exit_{usable_, socket(),     own_,    !interface_.is_loopback,
                         counts_, trace_.get(), waiting_};
    std::mutex routes_mutex_;
    std::map<UdpAddress, std::weak_ptr<WireRoute>> routes_;

    Retry retry_;
    std::unique_ptr<base::ForkWatch> watch_;
    std::unique_ptr<WireEngine> engine_;  ///< the last: it uses the others
};

}  // namespace millrace::soft
