// Completions: polling them, and sleeping until there is one.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "millrace/verbs/control_path.hpp"

namespace millrace::verbs {

/// One work completion.
struct Completion {
    ibv_wc raw{};

    [[nodiscard]] std::uint64_t id() const noexcept { return raw.wr_id; }
    [[nodiscard]] bool ok() const noexcept { return raw.status == IBV_WC_SUCCESS; }
    [[nodiscard]] ibv_wc_status status() const noexcept { return raw.status; }
    /// Undefined unless ok().
    [[nodiscard]] bool is_receive() const noexcept { return (raw.opcode & IBV_WC_RECV) != 0; }
    [[nodiscard]] std::uint32_t bytes() const noexcept { return raw.byte_len; }
    [[nodiscard]] bool has_immediate() const noexcept {
        return (raw.wc_flags & IBV_WC_WITH_IMM) != 0;
    }
    /// In host byte order, as `WriteWithImmediate` was given it.
    [[nodiscard]] std::uint32_t immediate() const noexcept {
        return __builtin_bswap32(raw.imm_data);
    }
    /// "remote access error: the peer's rkey, bounds or access flags do not allow it; …".
    [[nodiscard]] std::string explain() const;
};
static_assert(sizeof(Completion) == sizeof(ibv_wc));

/// Where events of armed completion queues arrive. Move-only.
class CompletionChannel {
  public:
    CompletionChannel() noexcept = default;
    CompletionChannel(CompletionChannel&& other) noexcept;
    CompletionChannel& operator=(CompletionChannel&& other) noexcept;
    CompletionChannel(const CompletionChannel&) = delete;
    CompletionChannel& operator=(const CompletionChannel&) = delete;
    ~CompletionChannel();

    /// Readable when an event waits; for poll and epoll. The channel is non-blocking.
    [[nodiscard]] int descriptor() const noexcept { return raw_->fd; }
    /// Takes and acknowledges every waiting event. Returns how many there were. Never blocks.
    int drain() noexcept;
    /// For programs that hear of their peers' ends otherwise, and have many channels in nested
    /// epolls: no device need make the descriptor readable for that. Devices that do (the soft one)
    /// leave it from now on. Before queue pairs are connected.
    void leave_peers_to_program() noexcept;
    /// For programs with thousands of channels that, besides, drain() it by the time that
    /// next_alarm() says: the descriptor tells events alone from now on, and is the only one that
    /// the channel has. Devices that act by the clock (the soft one) need no timer for it. Before
    /// completion queues are made with it, or its descriptor is watched.
    void tell_events_only() noexcept;
    /// How long a sleep on the descriptor may last at most; 0: drain() it now. To be asked behind
    /// arming, before each sleep. nanoseconds::max(): the descriptor tells everything.
    [[nodiscard]] std::chrono::nanoseconds next_alarm() const noexcept;
    /// Events that drain() and wait() have taken since the channel was made.
    [[nodiscard]] std::uint64_t drained() const noexcept { return drained_; }
    /// Sleeps until an event waits (and takes all) or the time is over. True: there was one.
    bool wait(std::chrono::nanoseconds limit) noexcept;
    [[nodiscard]] ibv_comp_channel* raw() const noexcept { return raw_; }

  private:
    friend class Context;
    CompletionChannel(ibv_comp_channel* raw, const ControlPath& path) noexcept
        : raw_{raw}, path_{&path} {}
    ibv_comp_channel* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
    std::uint64_t drained_ = 0;
};

/// A completion queue. Move-only. Polling is thread-safe.
class CompletionQueue {
  public:
    CompletionQueue() noexcept = default;
    CompletionQueue(CompletionQueue&& other) noexcept;
    CompletionQueue& operator=(CompletionQueue&& other) noexcept;
    CompletionQueue(const CompletionQueue&) = delete;
    CompletionQueue& operator=(const CompletionQueue&) = delete;
    ~CompletionQueue();

    /// Takes up to `into.size()` completions. Returns how many, or a negative value when the
    /// queue is broken (overrun). Never blocks, never throws.
    [[nodiscard]] int poll(std::span<Completion> into) noexcept {
        return ibv_poll_cq(raw_, static_cast<int>(into.size()),
                           into.empty() ? nullptr : &into.data()->raw);
    }
    /// The next completion raises an event on the channel. Poll once more after arming.
    [[nodiscard]] bool arm(bool solicited_only = false) noexcept {
        return ibv_req_notify_cq(raw_, solicited_only ? 1 : 0) == 0;
    }
    [[nodiscard]] int size() const noexcept { return raw_->cqe; }
    [[nodiscard]] ibv_cq* raw() const noexcept { return raw_; }

  private:
    friend class Context;
    CompletionQueue(ibv_cq* raw, const ControlPath& path) noexcept : raw_{raw}, path_{&path} {}
    ibv_cq* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
};

}  // namespace millrace::verbs
