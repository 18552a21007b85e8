// What a server keeps of a client's session, whatever becomes of its connection: which requests it
// has taken, which of them have no answer yet, and, of a session that resumes, the answers that its
// client has not acknowledged. Knows no connection and sends nothing.
//
// Each request of a session has a number, one more than the one before, and a place in a table of
// as many places as the window has, rounded up to a power of two: number & mask. So two requests
// without an answer never share a place, unless the client lies, which costs that client one of the
// two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

class PeerSession {
  public:
    /// What is known of an answer that its client has not acknowledged.
    struct Kept {
        std::uint64_t id = 0;
        Outcome outcome = Outcome::ok;
        std::vector<std::byte> payload;
    };

    /// A new one, with a name of its own. Throws bad_alloc, and nothing has changed then.
    void begin(const Hello& hello, std::uint32_t window, std::shared_ptr<HeldBytes> held);
    void end() noexcept;

    [[nodiscard]] const SessionName& name() const noexcept { return name_; }
    [[nodiscard]] bool resumes() const noexcept { return resumes_; }
    [[nodiscard]] std::uint32_t window() const noexcept { return window_; }

    // --- requests that come

    /// The highest number that was taken.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }
    [[nodiscard]] bool is_next(std::uint64_t id) const noexcept { return id == taken_ + 1; }
    /// An honest client has no more requests without an answer.
    [[nodiscard]] bool allows(const SessionHeader& header) const noexcept {
        return header.behind < window_ && header.behind < header.id;
    }
    /// The next one.
    void take(const SessionHeader& header) {
        taken_ = header.id;
        acknowledge(header);
    }
    /// The next ones, up to this.
    void take_up_to(std::uint64_t id) noexcept { taken_ = std::max(taken_, id); }
    /// Says which answers the client has.
    void acknowledge(const SessionHeader& header) noexcept {
        if (resumes_) [[unlikely]]
            forget_below(header.id - header.behind);
    }

    // --- requests that were announced and taken, and are to be READ; only if it resumes

    void add_unread(std::uint64_t id) {
        if (resumes_) unread_.push_back(id);
    }
    [[nodiscard]] bool is_unread(std::uint64_t id) const noexcept {
        return std::find(unread_.begin(), unread_.end(), id) != unread_.end();
    }
    /// False: it is none of them.
    bool take_unread(std::uint64_t id) noexcept { return std::erase(unread_, id) != 0; }

    // --- requests that are answered later

    /// How many.
    [[nodiscard]] std::uint32_t pending() const noexcept { return pending_; }
    /// False: another one, of a client that lies, loses its place to this.
    bool defer(std::uint64_t id) noexcept;
    [[nodiscard]] bool is_deferred(std::uint64_t id) const noexcept {
        return !deferred_.empty() && deferred_[id & mask_] == id;
    }
    /// It is answered now. False: it was already, or taken back.
    bool take_deferred(std::uint64_t id) noexcept;
    template <class Each>
    void each_deferred(Each&& each) const {
        for (const std::uint64_t id : deferred_) {
            if (id != 0) each(id);
        }
    }

    // --- answers that may be asked for again; only if it resumes

    /// `most`: bytes of all of them. False: there is no memory for it (HeldBytes). An answer beyond
    /// `most` is not kept either.
    bool keep(std::uint64_t id, Outcome outcome, std::span<const std::byte> payload,
              std::size_t most);
    /// Null: it is not kept, or was never given.
    [[nodiscard]] const Kept* kept(std::uint64_t id) const noexcept {
        const Kept& one = kept_[id & mask_];
        return one.id == id ? &one : nullptr;
    }

  private:
    void forget_below(std::uint64_t lowest) noexcept;
    void forget(Kept& kept) noexcept;

    SessionName name_{};
    bool resumes_ = false;
    std::uint32_t window_ = 0;
    std::uint64_t mask_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t acknowledged_ = 0;       ///< every number below is; only if it resumes
    std::vector<std::uint64_t> deferred_;  ///< numbers; 0: none
    std::uint32_t pending_ = 0;            ///< of these
    std::vector<Kept> kept_;
    std::size_t kept_bytes_ = 0;
    std::size_t most_kept_ = 0;
    HeldPart kept_part_{};
    std::vector<std::uint64_t> unread_;
};

}  // namespace millrace::message
