// Ringing bells: the pipes that wake whoever waits on a completion channel or for asynchronous
// events. Called by everybody who completes (executors, datagram senders) and by the owners of the
// bells. docs/soft/completion.md.
#pragma once

#include <cstdint>
#include <memory>

#include "layout/block_layout.hpp"
#include "system/descriptor.hpp"

namespace millrace::soft {

class PeerNode;

/// A pipe of which both ends are one descriptor, non-blocking; none, with errno, if there is none
/// to be had.
[[nodiscard]] Descriptor new_bell() noexcept;

/// Writes a byte into the bell pipe `descriptor` (-1: there is none). A full pipe is a bell that
/// rings already.
void ring_bell(int descriptor) noexcept;

/// Empties it; true if there was something in it. Look for news after that.
bool drain_bell(int descriptor) noexcept;

/// A bell of a peer, opened when it is first rung and whenever the peer names another; at each ring
/// until that succeeds.
class PeerBell {
  public:
    /// Our write end of the pipe that is number `number` at `peer`; -1: none, or not to be had
    /// (for want of memory it is rung already; without a descriptor the peer wakes by its own
    /// clock).
    [[nodiscard]] int descriptor(PeerNode& peer, int number) noexcept;

  private:
    int number_ = -1;
    std::shared_ptr<const Descriptor> pipe_;
};

/// Which epoch of an armed word the bell has been rung for: once suffices, for a completion that
/// was written after the epoch had begun. One written while the queue was being armed may be older
/// than the epoch's first event: it rings too, but does not count.
class RungEpoch {
  public:
    /// `armed`: the armed word as it is behind the completion; `before`: as it was ahead of it
    /// (`armed_not` for what is no completion and must not count).
    [[nodiscard]] bool must_ring(std::uint32_t armed, std::uint32_t before,
                                 bool solicited) noexcept {
        const std::uint32_t mode = armed & armed_mode_mask;
        if (mode == armed_not || armed == rung_ || (mode == armed_solicited && !solicited)) {
            return false;
        }
        if (armed == before) rung_ = armed;
        return true;
    }

  private:
    std::uint32_t rung_ = armed_not;
};

}  // namespace millrace::soft
