// One reader at its log: its two queues, what is known of it, and where in the history it reads.
// Used by LogEnd.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "log/choice.hpp"
#include "log/door.hpp"
#include "log/store.hpp"
#include "log/subscription.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/hub.hpp"

namespace millrace::flow::detail {

class LogSession {
  public:
    /// `filters`: the log's.
    LogSession(std::uint64_t crew, std::span<const LogFilter> filters) noexcept
        : crew_{crew}, filters_{filters} {}

    /// Which of the queues that come are its.
    [[nodiscard]] std::uint64_t crew() const noexcept { return crew_; }
    std::optional<LogRequests> requests;
    std::optional<LogItems> items;
    connect::Hub::Id member{};  ///< of the requests' descriptor
    bool is_active = true;      ///< a request would not wake us if we slept now

    struct Taken {
        std::uint32_t requests = 0;
        std::uint32_t acknowledgements = 0;
        const char* fault = nullptr;  ///< what no reader does
    };
    /// Takes the requests that are there.
    [[nodiscard]] Taken take(LogStore& store);
    /// Asks the system whether its requests' queue goes on. `empty`: it does; `closed`,
    /// `peer_lost`.
    [[nodiscard]] base::Status look_after() noexcept;

    struct Sent {
        base::Status status = base::Status::ok;  ///< `full`: it had no room for the next one
        std::uint32_t frames = 0;
        std::uint32_t passed = 0;
    };
    /// Sends what it has room for, `most` frames.
    [[nodiscard]] Sent send(LogStore& store, std::uint32_t most);
    /// Where it ends, a reader with a filter is told how far that has looked. `full`: not now.
    [[nodiscard]] base::Status tell_position();
    /// Moves on what was sent, and found the reader's ring full. For calls that may be the last for
    /// a while. `ok`: all of it lies in the reader's ring; `timed_out`: not yet; `closed`,
    /// `peer_lost`.
    base::Status settle();
    /// Tells it that another one came by its name, if there is room for a word.
    void displace(LogStore& store);

    /// The reader is one of the log's, with a place in the sequence.
    [[nodiscard]] bool has_joined() const noexcept { return number != 0; }
    /// It was told so, and is to be made one of them.
    [[nodiscard]] bool is_welcome() const noexcept { return is_welcome_ && number == 0; }
    [[nodiscard]] bool is_reading() const noexcept {
        return has_joined() && subscription_.state() == LogSubscription::State::reading;
    }
    [[nodiscard]] bool has_acknowledged(std::uint64_t position) const noexcept {
        return has_joined() && !name().empty() && subscription_.acknowledged() >= position;
    }
    [[nodiscard]] const std::string& name() const noexcept { return subscription_.name(); }
    [[nodiscard]] LogConsumer facts() const;

    std::uint64_t number = 0;
    base::Clock::time_point came_at = base::Clock::now();
    std::optional<base::Status> closed{};  ///< how its queue was closed by LogEnd::close
    bool has_no_room = false;              ///< at the last try
    bool has_all = false;                  ///< it was sent all that there was for it
    bool is_settled = true;                ///< and that lies in its ring

  private:
    [[nodiscard]] std::size_t longest_run(const LogStore& store) const noexcept;
    /// One item at most takes so many bytes of a frame, after the word.
    [[nodiscard]] std::uint64_t longest(const LogStore& store) const noexcept;
    /// Chooses its filter, of a reader that joins and has asked for one. `view`: is to be what it
    /// is judged by.
    void choose_filter(LogView& view);
    /// As a turn of send(): what the filter makes of a run.
    [[nodiscard]] base::Status send_chosen(LogStore& store, Sent& sent);

    std::uint64_t crew_;
    std::span<const LogFilter> filters_;
    bool is_welcome_ = false;
    LogSubscription subscription_;
    LogHistory::Cursor cursor_;
    std::optional<LogChoice> choice_;
    std::uint64_t told_ = 0;   ///< by a filter: the position up to which the reader was told
    std::uint64_t bytes_ = 0;  ///< of frames with items
};

}  // namespace millrace::flow::detail
