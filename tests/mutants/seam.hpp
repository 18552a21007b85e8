// Places in the copies of the code at which a test acts for the other end: between two steps that
// the code makes in one go. Included by the copies that tests/mutants/CMakeLists.txt makes, and by
// orders_test.cpp; nothing that is shipped knows of it. With nothing chosen the copies do what the
// originals do.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "millrace/base/clock.hpp"

namespace millrace::test {

/// What is to happen at a place of the code, once. One thread.
struct Act {
    const char* place = "";
    std::function<void()> run;
};
inline Act act;

/// Chooses it.
inline void when_at(const char* place, std::function<void()> run) { act = {place, std::move(run)}; }
/// Called by the copies.
inline void at(const char* place) {
    if (act.run && std::strcmp(act.place, place) == 0) std::exchange(act.run, {})();
}

/// A processor's store buffer that holds a store for as long as it may: until a fence, or until the
/// test lets it go. While it is not switched on, stores are visible at once.
struct StoreBuffer {
    bool is_on = false;
    std::uint64_t* word = nullptr;
    std::uint64_t value = 0;
};
inline StoreBuffer store_buffer;

inline void drain() {
    if (store_buffer.word == nullptr) return;
    std::atomic_ref<std::uint64_t>{*std::exchange(store_buffer.word, nullptr)}.store(
        store_buffer.value, std::memory_order_release);
}
inline void store(std::uint64_t& word, std::uint64_t value) {
    if (!store_buffer.is_on) {
        std::atomic_ref<std::uint64_t>{word}.store(value, std::memory_order_release);
        return;
    }
    drain();
    store_buffer.word = &word;
    store_buffer.value = value;
}
inline void fence() {
    if (store_buffer.is_on) drain();
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

/// What the code does now and then, and what repairs much by chance, is not due in a test's time.
inline std::atomic<bool> is_never_due{false};

/// Of a pause that has passed before the first time.
inline std::uint64_t pause_behind_the_first(std::uint64_t ticks) {
    return is_never_due ? base::ticks() / 2 : ticks;
}
inline std::uint64_t pause(std::uint64_t ticks) {
    return is_never_due ? std::numeric_limits<std::uint64_t>::max() / 2 : ticks;
}

}  // namespace millrace::test
