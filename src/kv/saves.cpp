#include "saves.hpp"

#include <exception>
#include <system_error>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/signals.hpp"
#include "snapshot.hpp"

namespace millrace::kv {
namespace {

std::int64_t unix_seconds() noexcept {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

}  // namespace

Saves::Saves(const Store& store, std::string path, std::chrono::nanoseconds period,
             std::function<void()> wake)
    : store_{store},
      path_{std::move(path)},
      period_{period},
      wake_{std::move(wake)},
      due_{base::Clock::now() + period},
      changes_{changes()},
      last_at_{unix_seconds()} {}

Saves::~Saves() { abandon(); }

std::uint64_t Saves::changes() const noexcept {
    const StoreStats now = store_.stats();
    return now.sets + now.erased + now.evicted + now.expired;
}

std::uint64_t Saves::save() {
    const std::lock_guard lock{saving_};
    end_writer();
    const std::uint64_t changes_before = changes();
    const auto begin = base::Clock::now();
    try {
        const std::uint64_t items = write_snapshot(store_, path_);
        note_written(begin, changes_before);
        return items;
    } catch (...) {
        note_failed();
        throw;
    }
}

bool Saves::begin() {
    const std::lock_guard lock{saving_};
    if (is_writing()) return false;
    if (writer_.joinable()) writer_.join();  // it has ended
    is_abandoned_ = false;
    is_writing_.store(true, std::memory_order_release);
    try {
        const base::SignalsBlocked for_others;
        writer_ = std::thread{[this] { write(); }};
    } catch (const std::system_error& error) {
        is_writing_.store(false, std::memory_order_release);
        throw base::Error{base::ErrorCode::resource_exhausted, "write a snapshot beside clients",
                          path_, error.what(), "allow more threads"};
    }
    return true;
}

/// With saving_.
void Saves::end_writer() noexcept {
    {
        const std::lock_guard asking{asking_};
        is_abandoned_ = true;
    }
    asked_.notify_all();
    if (writer_.joinable()) writer_.join();
}

void Saves::abandon() noexcept {
    const std::lock_guard lock{saving_};
    end_writer();
}

void Saves::write() noexcept {
    const std::uint64_t changes_before = changes();
    const auto begin = base::Clock::now();
    try {
        const auto items = write_snapshot_beside(
            store_, path_, [this](FunctionRef<void()> last) { return wait_for_moment(last); },
            [this] { return !is_abandoned_; });
        if (items) note_written(begin, changes_before);
    } catch (const std::exception& error) {
        note_failed();
        base::log(base::LogLevel::error, "kv", "{}", error.what());
    }
    is_writing_.store(false, std::memory_order_release);
}

void Saves::note_written(base::Clock::time_point begin, std::uint64_t changes_before) noexcept {
    changes_.store(changes_before, std::memory_order_relaxed);
    took_ns_.store(static_cast<std::uint64_t>((base::Clock::now() - begin).count()),
                   std::memory_order_relaxed);
    last_at_.store(unix_seconds(), std::memory_order_relaxed);
    has_failed_.store(false, std::memory_order_relaxed);
    written_.fetch_add(1, std::memory_order_relaxed);
}

void Saves::note_failed() noexcept {
    has_failed_.store(true, std::memory_order_relaxed);
    failed_.fetch_add(1, std::memory_order_relaxed);
}

bool Saves::wait_for_moment(FunctionRef<void()> last) {
    std::exception_ptr failure;
    bool is_done = false;
    const auto keeps_failure = [&] {
        try {
            last();
        } catch (...) {
            failure = std::current_exception();
        }
        is_done = true;
    };
    std::unique_lock lock{asking_};
    last_ = keeps_failure;
    is_wanted_.store(true, std::memory_order_release);
    wake_();
    asked_.wait(lock, [&] { return is_done || is_abandoned_; });
    last_.reset();
    is_wanted_.store(false, std::memory_order_release);
    if (failure) std::rethrow_exception(failure);
    return is_done;
}

void Saves::serve_alone() noexcept {
    {
        const std::lock_guard lock{asking_};
        if (!last_) return;
        (*last_)();
        last_.reset();
        is_wanted_.store(false, std::memory_order_release);
    }
    asked_.notify_all();
}

void Saves::begin_if_due() noexcept {
    const auto now = base::Clock::now();
    if (!has_period() || now < due_) return;
    due_ = now + period_;
    if (changes() == changes_.load(std::memory_order_relaxed)) return;
    try {
        (void)begin();
    } catch (const base::Error& error) {
        note_failed();
        base::log(base::LogLevel::error, "kv", "{}", error.what());
    }
}

SaveStats Saves::stats() const noexcept {
    return {.written = written_.load(std::memory_order_relaxed),
            .failed = failed_.load(std::memory_order_relaxed),
            .last_at = last_at_.load(std::memory_order_relaxed),
            .took_ns = took_ns_.load(std::memory_order_relaxed),
            .has_failed = has_failed_.load(std::memory_order_relaxed),
            .is_writing = is_writing()};
}

}  // namespace millrace::kv
