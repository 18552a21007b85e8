// When a server's snapshots are written: at once, while nobody is served or by a program's own
// call; or beside clients, by a thread that lives as long as it writes. What the writer needs to
// have alone, the server's first thread does between two requests. Used by Server, which has one,
// and by its doors.
//
//   begin(), or a period   the writer's thread starts
//   is_wanted()            the writer asks for a moment in which nobody changes the store; it has
//                          called `wake`, and waits
//   serve_alone()          gives it that moment
//   abandon()              the writer gives up, and its thread ends
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "millrace/base/clock.hpp"
#include "millrace/kv/detail/function_ref.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

/// Any number of threads, but for serve_alone() and begin_if_due(), which are one's.
class Saves {
  public:
    /// `path` empty: there is no file. `period` 0: by itself it writes nothing. `wake` makes the
    /// server's first thread look at is_wanted().
    Saves(const Store& store, std::string path, std::chrono::nanoseconds period,
          std::function<void()> wake);
    Saves(const Saves&) = delete;
    Saves& operator=(const Saves&) = delete;
    ~Saves();

    [[nodiscard]] bool has_file() const noexcept { return !path_.empty(); }
    [[nodiscard]] bool has_period() const noexcept { return has_file() && period_.count() != 0; }
    /// Writes in the calling thread, in place of a writer that is at work. How many items. Throws
    /// Error as write_snapshot().
    std::uint64_t save();
    /// Starts a writer. False: one is at work. Throws Error (resource_exhausted).
    bool begin();
    [[nodiscard]] bool is_writing() const noexcept {
        return is_writing_.load(std::memory_order_acquire);
    }
    /// The writer ends without a file. Waits for it.
    void abandon() noexcept;

    [[nodiscard]] bool is_wanted() const noexcept {
        return is_wanted_.load(std::memory_order_acquire);
    }
    /// While nobody changes the store.
    void serve_alone() noexcept;
    /// Starts a writer where the period is over and something has changed since the last one.
    void begin_if_due() noexcept;
    /// When begin_if_due() has something to look at.
    [[nodiscard]] base::Clock::time_point due() const noexcept { return due_; }

    [[nodiscard]] SaveStats stats() const noexcept;

  private:
    void write() noexcept;
    [[nodiscard]] bool wait_for_moment(FunctionRef<void()> last);
    void note_written(base::Clock::time_point begin, std::uint64_t changes_before) noexcept;
    /// A number that is another one once the store has changed.
    [[nodiscard]] std::uint64_t changes() const noexcept;
    void note_failed() noexcept;
    void end_writer() noexcept;

    const Store& store_;
    const std::string path_;
    const std::chrono::nanoseconds period_;
    const std::function<void()> wake_;

    std::mutex saving_;   ///< of a call that writes, or starts or ends a thread
    std::thread writer_;  ///< with saving_
    std::atomic<bool> is_writing_{false};
    std::atomic<bool> is_abandoned_{false};

    std::mutex asking_;
    std::condition_variable asked_;
    std::optional<FunctionRef<void()>> last_;  ///< what the writer wants to have done alone
    std::atomic<bool> is_wanted_{false};

    base::Clock::time_point due_;            ///< the server's first thread's
    std::atomic<std::uint64_t> changes_{0};  ///< that the last snapshot has
    std::atomic<std::uint64_t> written_{0};
    std::atomic<std::uint64_t> failed_{0};
    std::atomic<bool> has_failed_{false};
    std::atomic<std::int64_t> last_at_;  ///< seconds of Unix time
    std::atomic<std::uint64_t> took_ns_{0};
};

}  // namespace millrace::kv
