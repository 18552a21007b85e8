// What the tests of logs share: a log and readers that join it in one process, and folders.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/log.hpp"
#include "millrace/flow/log_reader.hpp"

namespace millrace::flow::test {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// Generous: it only ends tests that have failed.
inline Deadline soon() { return Deadline::after(40s); }

inline std::string fresh_address() {
    static std::atomic<int> count{0};
    return "unix:@millrace-log-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

/// A folder that goes with the test.
class Folder {
  public:
    Folder() {
        static std::atomic<int> count{0};
        path_ = std::filesystem::temp_directory_path() /
                ("millrace-log-" + std::to_string(getpid()) + "-" + std::to_string(++count));
        std::filesystem::remove_all(path_);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }
    [[nodiscard]] std::string path() const { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

/// The item at a position.
struct Numbered {
    std::uint64_t number = 0;
    std::uint64_t check = 0;

    static Numbered at(std::uint64_t number) { return {number, number * 7919 ^ 0x5bd1e995}; }
    friend bool operator==(const Numbered&, const Numbered&) = default;
};

/// Small rings, so that they wrap and fill.
inline LogOptions small_log(std::uint64_t ring_bytes = 1024) {
    LogOptions options;
    options.queue.ring.capacity = ring_bytes;
    return options;
}

/// What `call()` gives in a thread of its own, while the log's owner serves.
template <class Log, class Call>
auto while_served(Log& log, Call&& call) {
    auto calling = std::async(std::launch::async, std::forward<Call>(call));
    const Deadline deadline = soon();
    while (calling.wait_for(0s) != std::future_status::ready && !deadline.expired()) {
        (void)log.look_around();
    }
    return calling.get();
}

template <class T, class Log>
LogReader<T> join(Log& log, LogReaderOptions options = {}) {
    return while_served(
        log, [&] { return LogReader<T>::connect(log.address(), std::move(options), soon()); });
}
template <class T>
LogReader<T> join(Log<T>& log, LogReaderOptions options = {}) {
    return while_served(
        log, [&] { return LogReader<T>::connect(log.address(), std::move(options), soon()); });
}

/// Appends the items from end() up to `end`.
inline void append_up_to(Log<Numbered>& log, std::uint64_t end) {
    while (log.end() != end) {
        ASSERT_EQ(log.try_append(Numbered::at(log.end())), Status::ok) << "at " << log.end();
    }
}
/// Reads what follows up to `end`, while the log's owner serves.
inline void read_up_to(Log<Numbered>& log, LogReader<Numbered>& reader, std::uint64_t end) {
    const Deadline deadline = soon();
    while (reader.position() != end && !deadline.expired()) {
        const std::uint64_t position = reader.position();
        Numbered item;
        const Status status = reader.try_read(item);
        if (status == Status::ok) {
            ASSERT_EQ(item, Numbered::at(position));
            ASSERT_EQ(reader.position(), position + 1);
        } else {
            ASSERT_EQ(status, Status::empty) << reader.failure();
            (void)log.look_around();
        }
    }
    ASSERT_EQ(reader.position(), end);
}

/// Until `is_so()`, while the log's owner serves. False: it never was.
template <class Log, class Condition>
bool served_until(Log& log, Condition&& is_so) {
    const Deadline deadline = soon();
    while (!is_so()) {
        if (deadline.expired()) return false;
        (void)log.look_around();
    }
    return true;
}

template <class Call>
base::Error error_of(Call&& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return base::Error{base::ErrorCode::system, "nothing", "", "", ""};
}

}  // namespace millrace::flow::test
