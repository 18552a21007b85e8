// How far what this end has laid in its copy of the peer's ring was brought there: a place of the
// copy is free when the device is done with it, which only completions tell. Used by
// channel_core.hpp.
#pragma once

#include <cstdint>

#include "millrace/end/send_window.hpp"

namespace millrace::message {

/// One thread. Positions are those of the stream of frames.
class Transmitted {
  public:
    void begin(std::uint64_t position) noexcept { position_ = checkpoint_position_ = position; }
    /// Everything before it has left.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    void set(std::uint64_t position) noexcept { position_ = position; }

    /// The WRITE of a frame, or its SEND, has that ticket.
    void posted(std::uint64_t ticket) noexcept { last_ = ticket; }
    /// What was posted last is complete.
    [[nodiscard]] bool is_done(const end::SendWindow& window) const noexcept {
        return window.done(last_);
    }
    /// After completions were taken: of what lies before `laid` everything is done, or what was
    /// posted at the last look.
    void look(const end::SendWindow& window, std::uint64_t laid) noexcept {
        const bool all_done = is_done(window);
        if (!all_done && !window.done(checkpoint_)) return;
        position_ = all_done ? laid : checkpoint_position_;
        checkpoint_ = last_;
        checkpoint_position_ = laid;
    }

  private:
    std::uint64_t position_ = 0;
    std::uint64_t last_ = 0;  ///< ticket
    std::uint64_t checkpoint_ = 0;
    std::uint64_t checkpoint_position_ = 0;
};

}  // namespace millrace::message
