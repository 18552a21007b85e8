// The log's queue and its writer. spdlog carries the lines from the callers to the writing thread.
//
// The queue (1024 lines; when it is full the oldest line is dropped and counted) and its thread
// exist from the first written line on. They are never destroyed: a thread that logs while the
// process ends must find them. A child of fork inherits neither thread nor trustworthy locks, so
// it forgets the parent's queue and starts its own with its first line.
#include "millrace/base/log.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/own_threads.hpp"
#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::base {
namespace {

constexpr std::size_t queue_lines = 1024;

std::optional<LogLevel> level_named(std::string_view name) noexcept {
    for (const auto level : {LogLevel::trace, LogLevel::debug, LogLevel::info, LogLevel::warn,
                             LogLevel::error, LogLevel::off}) {
        if (name_of(level) == name) return level;
    }
    return std::nullopt;
}

/// -1 until MILLRACE_LOG has been read.
std::atomic<int> threshold{-1};
/// set_log_level was called.
std::atomic<bool> overridden{false};

/// nullopt: MILLRACE_LOG names no level.
std::optional<LogLevel> level_in_environment() noexcept {
    const char* wanted = std::getenv("MILLRACE_LOG");
    if (wanted == nullptr || *wanted == '\0') return LogLevel::warn;
    return level_named(wanted);
}

/// Writes all of the text to standard error; what cannot be written is lost, as logs are.
void write_out(std::string_view text) noexcept {
    const Uncancelled held;
    while (!text.empty()) {
        const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

/// "12:34:56.123456 warn  soft: text". UTC, by arithmetic: the C library's calendar takes a lock
/// that a fork may leave held.
std::string line_of(LogLevel level, std::string_view component, std::string_view text) {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    const auto second = micros / 1'000'000;
    return fmt::format("{:02}:{:02}:{:02}.{:06} {:<5} {}: {}\n", second / 3600 % 24,
                       second / 60 % 60, second % 60, micros % 1'000'000, name_of(level), component,
                       text);
}

/// Called by the queue's thread only, hence no lock.
class ErrorOutput final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  public:
    /// `linger` is called behind each line.
    explicit ErrorOutput(std::function<void()> linger) : linger_{std::move(linger)} {}
    [[nodiscard]] std::size_t written() const noexcept {
        return written_.load(std::memory_order_acquire);
    }

  protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        write_out({message.payload.data(), message.payload.size()});
        written_.fetch_add(1, std::memory_order_release);
        linger_();
    }
    void flush_() override {}

  private:
    std::function<void()> linger_;
    std::atomic<std::size_t> written_{0};
};

class Queue {
  public:
    Queue()
        : pool_{std::make_shared<spdlog::details::thread_pool>(
              queue_lines, 1, [] { [[maybe_unused]] static thread_local const OwnThread own; })},
          output_{std::make_shared<ErrorOutput>([this] { linger(); })},
          logger_{std::make_shared<spdlog::async_logger>(
              "millrace", output_, pool_, spdlog::async_overflow_policy::overrun_oldest)} {
        logger_->set_level(spdlog::level::trace);
    }

    void push(const std::string& line) {
        queued_.fetch_add(1, std::memory_order_seq_cst);
        bell_.ring();
        logger_->log(spdlog::level::info, spdlog::string_view_t{line.data(), line.size()});
    }

    void flush() noexcept {
        const std::size_t queued = queued_.load(std::memory_order_relaxed);
        NapParker parker;
        if (wait_until([&] { return has_passed(queued); }, Deadline::after(std::chrono::seconds{1}),
                       WaitPolicy::blocking(), parker) != Status::ok) {
            write_out("millrace: the log's output does not take its lines; some are lost\n");
        }
        const std::size_t dropped = pool_->overrun_counter();
        if (dropped > reported_.exchange(dropped, std::memory_order_relaxed)) {
            try {
                write_out(
                    fmt::format("millrace: {} lines of the log were dropped in all\n", dropped));
            } catch (...) {
            }
        }
    }

  private:
    [[nodiscard]] bool has_passed(std::size_t lines) const {
        return output_->written() + pool_->overrun_counter() >= lines;
    }
    /// By the queue's thread, until there are lines again: in spdlog's own wait nobody would find
    /// that the program has no thread any more.
    void linger() {
        const auto has_none = [this] {
            return has_passed(queued_.load(std::memory_order_seq_cst));
        };
        while (has_none()) {
            bell_.announce();
            if (has_none()) bell_.sleep(std::chrono::seconds{1});
            bell_.retract();
            end_with_program();
        }
    }

    ThreadBell bell_;
    std::shared_ptr<spdlog::details::thread_pool> pool_;
    std::shared_ptr<ErrorOutput> output_;
    std::shared_ptr<spdlog::async_logger> logger_;
    std::atomic<std::size_t> queued_{0};
    std::atomic<std::size_t> reported_{0};
};

std::atomic<Queue*> queue{nullptr};
std::mutex starting;

/// What the program put in the place of standard error; null: nothing. Former ones are kept, as
/// another thread may be about to call them.
std::atomic<const LogSink*> sink{nullptr};

void forget_in_child() noexcept {
    queue.store(nullptr, std::memory_order_relaxed);  // leaked: its thread stayed in the parent
    new (&starting) std::mutex;                       // another thread may have held it
}

Queue* started_queue() {
    if (Queue* present = queue.load(std::memory_order_acquire)) return present;
    const std::lock_guard guard{starting};
    if (Queue* present = queue.load(std::memory_order_acquire)) return present;
    static const bool hooked = [] {
        pthread_atfork(nullptr, nullptr, forget_in_child);
        // Where two threads end the program at once, each calls what the other has not yet called,
        // and the first that is through ends the process: each has a flush to wait for.
        for (int threads = 0; threads < 2; ++threads) std::atexit([] { flush_log(); });
        return true;
    }();
    static_cast<void>(hooked);
    const SignalsBlocked blocked;
    auto* made = new Queue;
    queue.store(made, std::memory_order_release);
    return made;
}

int threshold_from_environment() noexcept {
    const auto named = level_in_environment();
    const LogLevel level = named.value_or(LogLevel::warn);
    int unset = -1;
    if (threshold.compare_exchange_strong(unset, static_cast<int>(level),
                                          std::memory_order_relaxed)) {
        if (!named) {
            log_line(LogLevel::warn, "base",
                     "MILLRACE_LOG names no level; use trace, debug, info, warn, error or off");
        }
        return static_cast<int>(level);
    }
    return unset;
}

}  // namespace

std::string_view name_of(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::trace: return "trace";
        case LogLevel::debug: return "debug";
        case LogLevel::info: return "info";
        case LogLevel::warn: return "warn";
        case LogLevel::error: return "error";
        case LogLevel::off: return "off";
    }
    return "unknown";
}

bool log_enabled(LogLevel level) noexcept {
    int least = threshold.load(std::memory_order_relaxed);
    if (least < 0) [[unlikely]]
        least = threshold_from_environment();
    return level != LogLevel::off && static_cast<int>(level) >= least;
}

void check_log_setting() {
    if (overridden.load(std::memory_order_relaxed) || level_in_environment()) return;
    throw Error{ErrorCode::invalid_argument, "read the level of the log", "MILLRACE_LOG",
                fmt::format("it is '{}', which is no level", std::getenv("MILLRACE_LOG")),
                "set it to trace, debug, info, warn, error or off, or unset it"};
}

void set_log_level(LogLevel level) noexcept {
    overridden.store(true, std::memory_order_relaxed);
    threshold.store(static_cast<int>(level), std::memory_order_relaxed);
}

void set_log_sink(LogSink taken) {
    static std::mutex mutex;
    static auto* const all = new std::deque<LogSink>;  // outlives every thread that logs
    const std::lock_guard guard{mutex};
    if (!taken) {
        sink.store(nullptr, std::memory_order_release);
        return;
    }
    sink.store(&all->emplace_back(std::move(taken)), std::memory_order_release);
}

void log_line(LogLevel level, std::string_view component, std::string_view text) noexcept {
    if (!log_enabled(level)) return;
    if (const LogSink* taken = sink.load(std::memory_order_acquire)) {
        try {
            (*taken)(level, component, text);
        } catch (...) {
        }
        return;
    }
    try {
        const std::string line = line_of(level, component, text);
        try {
            started_queue()->push(line);
        } catch (...) {
            write_out(line);  // no thread to be had: the caller writes itself
        }
    } catch (...) {
        write_out(text);
        write_out("\n");
    }
}

void flush_log() noexcept {
    if (Queue* present = queue.load(std::memory_order_acquire)) present->flush();
}

}  // namespace millrace::base
