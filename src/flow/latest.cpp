// How values are put and got: both sides of the protocol of latest.hpp.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "latest_state.hpp"
#include "millrace/base/detail/peer_causality.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

namespace {

/// A copy is whole while the version has gone on by no more.
constexpr std::uint32_t most_ahead = LatestEnd::State::places - 2;
/// Copies that are begun anew within one call.
constexpr int most_tries = 64;

/// Copies words that may be written or read by the other end meanwhile. The last may be a part of
/// one, of the value's end: `to`, or `from`, has room for whole ones only on the shared side.
void store_words(std::byte* shared, const std::byte* value, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, value + at, std::min(sizeof word, bytes - at));
        std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(shared + at)}.store(
            word, std::memory_order_relaxed);
    }
}
void load_words(std::byte* value, const std::byte* shared, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        const std::uint64_t word =
            std::atomic_ref<std::uint64_t>{
                *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(shared + at))}
                .load(std::memory_order_relaxed);
        std::memcpy(value + at, &word, std::min(sizeof word, bytes - at));
    }
}

}  // namespace

// --- writer

Status LatestEnd::State::put(std::uint32_t cell, const std::byte* value) noexcept {
    if (end.is_closing()) return Status::closed;
    if (cell >= cells) return Status::too_large;
    if (end.ended() != Status::ok) [[unlikely]]
        return end.ended();
    if (const std::uint64_t now = base::ticks(); now - writing.looked >= writing.look_ticks)
        [[unlikely]] {
        writing.looked = now;
        if (end.look() != Status::ok) return end.ended();
        if (writing.bell.owes()) wake_peer();
    }
    const std::uint32_t version = writing.versions[cell] + 1;
    if (writing.cells != nullptr) [[likely]] {
        std::byte* const all = writing.cells.get();
        // Whoever sees a word of this value sees the versions before.
        std::atomic_thread_fence(std::memory_order_release);
        store_words(all + value_at(cell, version), value, size);
        base::telling_peers();
        ring::store_word(all + cell * sizeof(std::uint64_t), word_of(version));
    } else if (const Status status = post(cell, version, value); status != Status::ok) {
        return status;
    }
    writing.versions[cell] = version;
    writing.last_cell = cell;
    ++counts.values;
    if (writing.bell.publish(++writing.total)) [[unlikely]]
        wake_peer();
    return Status::ok;
}

Status LatestEnd::State::post(std::uint32_t cell, std::uint32_t version,
                              const std::byte* value) noexcept {
    if (end.window().free() < 2) {
        if (end.window().reap() != Status::ok) return end.lost();
        if (end.window().free() < 2) return Status::full;
    }
    const bool is_inline = size <= writing.max_inline;
    const std::byte* from = value;
    if (!is_inline) {
        if (!end.window().done(writing.staged_until[writing.stage])) {
            if (end.window().reap() != Status::ok) return end.lost();
            if (!end.window().done(writing.staged_until[writing.stage])) return Status::full;
        }
        std::byte* const place = memory.data() + writing.stage * place_bytes;
        std::memcpy(place, value, size);
        from = place;
    }
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(size),
                        is_inline ? 0 : memory.slice(0, place_bytes).lkey};
    const verbs::Write write{
        .from = {&slice, 1},
        .to = writing.memory + value_at(cell, version),
        .flags = is_inline ? verbs::SendFlags::inlined : verbs::SendFlags::none};
    if (const Status status = end.window().post(write); status != Status::ok) return status;
    ++counts.requests;
    if (const Status status = post_version(cell, version, end::Signal::when_due);
        status != Status::ok) {
        return status;
    }
    if (!is_inline) {
        writing.staged_until[writing.stage] = end.window().posted();
        if (++writing.stage == most_staged) writing.stage = 0;
    }
    return Status::ok;
}

Status LatestEnd::State::post_version(std::uint32_t cell, std::uint32_t version,
                                      end::Signal signal) noexcept {
    const std::uint64_t word = word_of(version);
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
    const Status status = end.window().post(verbs::Write{.from = {&slice, 1},
                                                         .to = writing.memory + cell * sizeof word,
                                                         .flags = verbs::SendFlags::inlined},
                                            signal);
    if (status == Status::ok) ++counts.requests;
    return status;
}

// --- reader

Status LatestEnd::State::copy(std::uint32_t cell, std::byte* value,
                              std::uint32_t& version) noexcept {
    for (int tries = 0; tries != most_tries; ++tries) {
        if (!version_of(cell, version)) continue;
        if (version == 0 && reading.versions[cell] == 0) return Status::empty;
        base::heard_from_peers();
        load_words(value, memory.data() + value_at(cell, version), size);
        std::atomic_thread_fence(std::memory_order_acquire);
        std::uint32_t now = 0;
        if (version_of(cell, now) && now - version <= most_ahead) return Status::ok;
        ++counts.repeated;
    }
    return Status::empty;
}

Status LatestEnd::State::get(std::uint32_t cell, std::byte* value) noexcept {
    std::uint32_t version = 0;
    if (const Status status = copy(cell, value, version); status != Status::ok) return status;
    const std::uint32_t newer = version - reading.versions[cell];
    if (newer != 0) counts.passed_over += newer - 1;
    reading.total += newer;
    reading.versions[cell] = version;
    ++counts.values;
    return Status::ok;
}

Status LatestEnd::State::nothing() noexcept {
    if (is_copy()) return end.ended();
    if (!end.has_descriptor()) return look_around();
    end.end_rest();
    const auto finds = [this] { return find_new(0) != cells || look_around() != Status::empty; };
    if (finds()) {
        end.wake();
    } else if (!end.stays_awake(reading.total)) {
        end.rest(finds);
    }
    return end.ended() == Status::ok ? Status::empty : end.ended();
}

Status LatestEnd::State::look_around() noexcept {
    // What was put before the end is got before it.
    return end.look() == Status::ok || find_new(0) != cells ? Status::empty : end.ended();
}

// --- the calls

LatestEnd::LatestEnd(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
LatestEnd::LatestEnd(LatestEnd&&) noexcept = default;
LatestEnd& LatestEnd::operator=(LatestEnd&&) noexcept = default;
LatestEnd::~LatestEnd() = default;

Status LatestEnd::put(std::uint32_t cell, const void* value) noexcept {
    return state_->put(cell, static_cast<const std::byte*>(value));
}

Status LatestEnd::put(std::uint32_t cell, const void* value, const Deadline& deadline) {
    const Status status = put(cell, value);
    if (status != Status::full) return status;
    State& state = *state_;
    return state.end.wait_while(
        Status::full, [&] { return put(cell, value); }, deadline, state.options.wait);
}

Status LatestEnd::flush(const Deadline& deadline) {
    State& state = *state_;
    return state.end.is_closed() ? Status::closed : state.flush(deadline);
}

Status LatestEnd::State::flush(const Deadline& deadline) {
    // What is stored is there. A version that is said again by a request may land behind a newer
    // one.
    if (writing.cells != nullptr || end.window().posted() == 0) return end.look_now();
    const Status waited = end.wait(
        [this] {
            end::SendWindow& window = end.window();
            if (window.reap() != Status::ok) return true;
            if (!window.done(window.posted()) && !window.last_is_signaled()) {
                // Says again what is so already.
                (void)post_version(writing.last_cell, writing.versions[writing.last_cell],
                                   end::Signal::now);
            }
            return window.done(window.posted());
        },
        deadline, options.wait);
    if (waited != Status::ok) return waited;
    return end.window().broken() ? end.lost() : end.look_now();
}

Status LatestEnd::close(const Deadline& deadline) {
    State& state = *state_;
    return state.end.close(
        [&] {
            if (state.role == Role::reader) return Status::ok;
            const Status status = state.flush(deadline);
            if (status == Status::ok && state.writing.bell.owes()) state.wake_peer();
            return status;
        },
        [&] { return state.end.peer_position() == state.writing.total; },
        [&] { return state.role == Role::reader ? state.reading.total : state.writing.total; },
        deadline, state.options.wait);
}

Status LatestEnd::try_get(std::uint32_t cell, void* value) noexcept {
    State& state = *state_;
    if (cell >= state.cells) return Status::too_large;
    if (state.end.is_closing()) return Status::closed;
    if (state.is_copy()) return state.end.ended();
    if (state.is_new(cell)) return state.get(cell, static_cast<std::byte*>(value));
    const Status status = state.nothing();
    // Another cell may have one still; this one has none.
    return status == Status::empty && state.end.ended() != Status::ok && !state.is_new(cell)
               ? state.end.ended()
               : status;
}

Status LatestEnd::read(std::uint32_t cell, void* value) noexcept {
    State& state = *state_;
    if (cell >= state.cells) return Status::too_large;
    if (state.is_copy()) return state.end.ended();
    return state.get(cell, static_cast<std::byte*>(value));
}

Status LatestEnd::next(std::uint32_t& cell, void* value) noexcept {
    State& state = *state_;
    if (state.end.is_closing()) return Status::closed;
    if (state.is_copy()) return state.end.ended();
    const std::uint32_t found = state.find_new(state.reading.cursor);
    if (found == state.cells) return state.nothing();
    state.reading.cursor = found + 1 == state.cells ? 0 : found + 1;
    const Status status = state.get(found, static_cast<std::byte*>(value));
    if (status == Status::ok) cell = found;
    return status;
}

Status LatestEnd::wait(const Deadline& deadline) {
    State& state = *state_;
    if (state.end.is_closing()) return Status::closed;
    if (state.is_copy()) return state.end.ended();
    const std::uint64_t slept = state.reading.sleeper->sleeps();
    const Status status = state.end.wait_while(
        Status::empty,
        [&] {
            return state.find_new(state.reading.cursor) != state.cells ? Status::ok
                                                                       : state.look_around();
        },
        deadline, state.options.wait);
    state.counts.sleeps += state.reading.sleeper->sleeps() - slept;
    return status;
}

Status LatestEnd::look_around() noexcept {
    State& state = *state_;
    if (state.end.is_closed()) return Status::closed;
    const Status peer = state.end.look_now();
    if (state.role == Role::writer) {
        if (peer == Status::ok && state.writing.bell.owes()) state.wake_peer();
        return peer;
    }
    if (state.is_copy()) return peer;
    // What was put before the end is got before it.
    return peer == Status::ok || state.find_new(0) != state.cells ? Status::empty : peer;
}

int LatestEnd::descriptor() { return state_->end.descriptor(state_->options.wait.spin); }

std::uint32_t LatestEnd::cells() const noexcept { return state_->cells; }

LatestStats LatestEnd::stats() const noexcept {
    LatestStats stats = state_->counts;
    if (state_->role == Role::reader) stats.events = state_->reading.sleeper->woken();
    return stats;
}

std::string LatestEnd::failure() const { return state_->end.failure(); }

std::string LatestEnd::explain() const {
    const State& state = *state_;
    return fmt::format(
        "latest values: {} cells of {} bytes, four places each, {}\n{}{}", state.cells, state.size,
        state.role == Role::reader       ? "written by the other end, read here"
        : state.writing.cells != nullptr ? "stored to the reader's memory"
                                         : fmt::format("posted: two WRITEs for each value, {}",
                                                       state.size <= state.writing.max_inline
                                                           ? "inline"
                                                           : "the value from registered memory"),
        state.role == Role::writer ? fmt::format("carrier: {}\n", state.writing.carrier.reason())
                                   : "",
        state.end.link().explain());
}

}  // namespace millrace::flow::detail
