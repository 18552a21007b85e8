// Where many ends of flow queues come in, and the one hub that their owner sleeps in. What FanIn,
// Merge, Replicator and Log have in common. Not for use by itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"

namespace millrace::flow::detail {

/// The hub that the owner of many ends sleeps in: which thread that is, and when a look at the
/// kernel is due. Where nobody comes in there is nothing in the hub, and one thread or another may
/// use it.
class OwnersHub {
  public:
    /// Nobody comes in.
    OwnersHub();

    [[nodiscard]] connect::Hub& hub() noexcept { return hub_; }
    /// Throws Error (invalid_argument), which says what was `attempted`: the calling thread, or
    /// process, is another one than it belongs to.
    void require_owner(const char* attempted) const;
    /// It was made in this process, not in the parent of it.
    [[nodiscard]] bool is_of_this_process() const noexcept { return forks_ == base::forks(); }
    /// A look at the kernel is due, each millisecond; or an error, as this is another process.
    [[nodiscard]] bool is_due() const noexcept {
        return must_look_ || !is_of_this_process() || base::ticks() - looked_at_ >= period_;
    }
    /// Looks. True: somebody may have come. Throws Error as require_owner.
    [[nodiscard]] bool look(const char* attempted);
    /// Sleeps until something is due in the hub. Throws Error as require_owner.
    void rest(const char* attempted, const base::Deadline& deadline);

  protected:
    /// Somebody has come where `descriptor` is readable. `name`: "a fan-in at ADDRESS", for errors.
    void watch(int descriptor, std::string name);
    void stop_watching();

  private:
    std::string name_;  ///< empty: nobody comes in
    connect::Hub hub_;
    std::vector<connect::Hub::Id> watched_;
    bool somebody_came_ = false;
    bool must_look_ = true;
    std::uint32_t forks_;
    std::uint64_t looked_at_ = 0;
    std::uint64_t period_;
};

/// One thread: the hub's.
class Door : public OwnersHub {
  public:
    /// Nobody comes in.
    Door() = default;
    /// Throws Error as Listener::listen. `whose`: "a fan-in", for errors. `most`: peers at a time.
    Door(const char* whose, const connect::Address& address, Options options, std::uint64_t most);
    /// As the one before, with a listener that exists already.
    Door(const char* whose, Listener listener);

    /// From now on a thread of its own accepts: `try_accept()` gives an optional end there, and
    /// `take(End)` is called within look(). To be called at most once, before the first look.
    template <class TryAccept, class Take>
    void accept_beside(const connect::AcceptorOptions& options, TryAccept try_accept, Take take) {
        stop_accepting();
        acceptor_.emplace(listener_->descriptor(), std::move(try_accept), hub(), std::move(take),
                          options);
    }

    [[nodiscard]] bool has_listener() const noexcept { return listener_.has_value(); }
    /// Only if somebody may come in.
    [[nodiscard]] Listener& listener() noexcept { return *listener_; }
    [[nodiscard]] const Listener& listener() const noexcept { return *listener_; }
    void stop_accepting();

  private:
    std::optional<Listener> listener_;
    std::optional<connect::Acceptor> acceptor_;
};

/// Of those that are in, so many are looked after by the clock, in turn, each millisecond at most.
inline constexpr std::size_t looked_after_at_once = 32;

/// Ends that sleep in a hub are awake no longer than that says.
[[nodiscard]] Options without_spin(Options options);

/// A line in the log: one that came in was gone before its setup was over.
void note_lost_newcomer(const std::string& peer, const std::string& why);

}  // namespace millrace::flow::detail
