// Both ends of latest values: memory, its agreement, and the two sides of the protocol.
#include "millrace/flow/latest.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

namespace {

constexpr const char* attempt = "set up latest values";
constexpr std::uint32_t most_cells = 1U << 20;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t places = 4;
/// A copy is whole while the version has gone on by no more.
constexpr std::uint32_t most_ahead = places - 2;
/// Values of the writer that may be on their way.
constexpr std::uint32_t most_staged = 32;
/// Copies that are begun anew within one call.
constexpr int most_tries = 64;

/// What each end tells the other. Addresses are the sender's own.
struct Facts {
    std::uint64_t role = 0;
    std::uint64_t cells = 0;  ///< 0, of a writer: as many as the reader has
    std::uint64_t size = 0;
    std::uint64_t alignment = 0;
    std::uint64_t name = 0;  ///< a hash of what a value is called
    std::uint64_t memory = 0;
    std::uint64_t page = 0;
    std::uint32_t memory_rkey = 0;
    std::uint32_t page_rkey = 0;
    std::uint64_t far_fences = 0;
};
static_assert(sizeof(Facts) == 72);

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

/// A version as it travels. 32 bits of it tell differences.
[[nodiscard]] std::uint64_t word_of(std::uint32_t version) noexcept {
    return ring::PositionWord::pack(std::uint64_t{version} * ring::PositionWord::unit);
}

connect::LinkOptions link_options_of(const LatestOptions& options) {
    return {.service = "latest values",
            .endpoint = options.endpoint,
            .max_send_requests = 128,
            .max_receive_requests = 16,
            .max_send_slices = 1,
            .max_inline = 128,
            .admission = options.admission};
}

void check(LatestEnd::Role role, const ItemFacts& item, const LatestOptions& options) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, attempt, std::move(what),
                          std::move(why), std::move(remedy)};
    };
    if (role == LatestEnd::Role::reader && options.cells == 0) {
        refuse("no cells", "a reader says how many values there are", "set LatestOptions::cells");
    }
    if (options.cells > most_cells || options.cells * places * item.size > most_bytes) {
        refuse(fmt::format("{} cells of {} bytes", options.cells, item.size),
               fmt::format("there are at most {}, and {} bytes with their four places", most_cells,
                           most_bytes),
               "use fewer, or several readers");
    }
}

}  // namespace

struct LatestEnd::State {
    class ValueSleeper final : public end::Sleeper {
      public:
        explicit ValueSleeper(State& state)
            : Sleeper{state.end.link(), state.end.window(), state.page(),
                      state.page_memory.region()},
              state_{&state} {}

      private:
        bool is_news(std::uint64_t progress) noexcept override { return progress != state_->seen; }
        State* state_;
    };

    State(Role its_role, const ItemFacts& item, connect::Link connected, LatestOptions chosen,
          const Deadline& deadline);
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    [[nodiscard]] end::WakeUpPage& page() noexcept {
        return *reinterpret_cast<end::WakeUpPage*>(page_memory.data());
    }
    void meet(const Facts& peer);

    // Versions of all cells lie side by side, values behind them.
    [[nodiscard]] std::uint64_t values_at() const noexcept {
        return ring::round_up(std::uint64_t{cells} * sizeof(std::uint64_t), 64);
    }
    [[nodiscard]] std::uint64_t value_at(std::uint32_t cell, std::uint32_t version) const noexcept {
        return values_at() + (std::uint64_t{cell} * places + version % places) * place_bytes;
    }
    [[nodiscard]] std::uint64_t all_bytes() const noexcept {
        return values_at() + std::uint64_t{cells} * places * place_bytes;
    }

    // --- writer

    Status put(std::uint32_t cell, const std::byte* value) noexcept;
    Status flush(const Deadline& deadline);
    Status post(std::uint32_t cell, std::uint32_t version, const std::byte* value) noexcept;
    Status post_version(std::uint32_t cell, std::uint32_t version, end::Signal signal) noexcept;
    void wake_peer() noexcept {
        if (bell.ring() == Status::ok) ++counts.events;
    }

    // --- reader

    [[nodiscard]] bool version_of(std::uint32_t cell, std::uint32_t& version) const noexcept {
        const std::uint64_t word = ring::load_word(memory.data() + cell * sizeof(std::uint64_t));
        if (!ring::PositionWord::whole(word)) return false;
        version = static_cast<std::uint32_t>(word);
        return true;
    }
    /// `ok`: a copy of `version`. `empty`: none could be had.
    Status copy(std::uint32_t cell, std::byte* value, std::uint32_t& version) noexcept;
    [[nodiscard]] bool is_new(std::uint32_t cell) const noexcept {
        std::uint32_t version = 0;
        return version_of(cell, version) && version != got[cell];
    }
    /// The first cell from `from` on, going round, with a newer value; cells: none.
    [[nodiscard]] std::uint32_t find_new(std::uint32_t from) const noexcept {
        for (std::uint32_t i = 0; i != cells; ++i) {
            std::uint32_t cell = from + i;
            if (cell >= cells) cell -= cells;
            if (is_new(cell)) return cell;
        }
        return cells;
    }
    Status get(std::uint32_t cell, std::byte* value) noexcept;
    Status nothing() noexcept;
    Status look_around() noexcept;

    // --- both

    /// In a child made by fork.
    void become_copy() noexcept { (void)end.end(Status::peer_lost); }
    [[nodiscard]] bool is_copy() const noexcept { return end.window().is_copy(); }

    Role role;
    LatestOptions options;  ///< its endpoint outlives what is registered there
    std::uint64_t size;
    std::uint64_t alignment;
    std::uint64_t name;
    std::uint32_t cells = 0;
    std::uint64_t place_bytes = 0;

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    verbs::RegisteredBuffer memory;  ///< reader: cells; writer: values under way
    verbs::RegisteredBuffer page_memory;
    end::End end;
    end::Bell bell;
    std::optional<ValueSleeper> sleeper;
    ring::PeerMemory carrier;
    std::shared_ptr<std::byte> peer_cells;  ///< writer by store
    verbs::RemoteAddress peer_memory{};
    std::uint32_t max_inline = 0;

    std::vector<std::uint32_t> put_versions;                ///< writer: by cell
    std::array<std::uint64_t, most_staged> staged_until{};  ///< writer: tickets
    std::uint32_t stage = 0;
    std::uint32_t last_cell = 0;
    std::uint64_t total = 0;

    std::vector<std::uint32_t> got;  ///< reader: by cell
    std::uint64_t seen = 0;          ///< sum of versions that were got
    std::uint32_t cursor = 0;

    std::uint64_t looked = 0;  ///< writer: ticks of the last look after the reader
    const std::uint64_t look_ticks = base::ticks_in(std::chrono::milliseconds{1});
    LatestStats counts;
    base::ForkWatch fork_watch{*this};
};

namespace {

/// What an end registers before it knows what the peer wants: the reader all of its cells, the
/// writer nothing, as it learns how many there are first.
std::uint64_t place_of(std::uint64_t size) noexcept {
    return ring::round_up(std::max<std::uint64_t>(size, 1), 8);
}

/// With the endpoint whose domain what is registered is of.
[[nodiscard]] LatestOptions of_domain(const connect::Link& link, LatestOptions chosen) {
    chosen.endpoint = link.shared_endpoint();
    return chosen;
}

}  // namespace

LatestEnd::State::State(Role its_role, const ItemFacts& item, connect::Link connected,
                        LatestOptions chosen, const Deadline& deadline)
    : role{its_role},
      options{of_domain(connected, std::move(chosen))},
      size{item.size},
      alignment{item.alignment},
      name{base::name_hash(item.name)},
      cells{options.cells},
      place_bytes{place_of(item.size)},
      memory{connected.allocate(
          its_role == Role::reader ? all_bytes() : most_staged * place_bytes,
          its_role == Role::reader ? verbs::Access::remote_write : verbs::Access::none)},
      page_memory{connected.allocate(sizeof(end::WakeUpPage),
                                     verbs::Access::remote_write | verbs::Access::remote_read)},
      end{std::move(connected)} {
    connect::Link& link = end.link();
    new (page_memory.data()) end::WakeUpPage{};
    max_inline = link.queue_pair().capacity().max_inline_data;
    if (role == Role::reader) {
        for (std::uint32_t cell = 0; cell != cells; ++cell) {
            ring::store_word(memory.data() + cell * sizeof(std::uint64_t), word_of(0));
        }
        got.assign(cells, 0);
    }
    // Before the peer can ring.
    sleeper.emplace(*this);
    const Facts mine{.role = static_cast<std::uint64_t>(role),
                     .cells = cells,
                     .size = size,
                     .alignment = alignment,
                     .name = name,
                     .memory = memory.remote().address,
                     .page = page_memory.remote().address,
                     .memory_rkey = memory.remote().rkey,
                     .page_rkey = page_memory.remote().rkey,
                     .far_fences = end::can_make_far_fences(link) ? 1U : 0U};
    const auto theirs = link.exchange(connect::bytes_of(mine), deadline);
    meet(connect::facts_in<Facts>(theirs, attempt, link.peer_name()));
}

void LatestEnd::State::meet(const Facts& peer) {
    connect::Link& link = end.link();
    const auto refuse = [&link](std::string cause, std::string remedy) {
        throw base::Error{base::ErrorCode::refused, attempt, link.peer_name(), std::move(cause),
                          std::move(remedy)};
    };
    if (peer.role == static_cast<std::uint64_t>(role)) {
        refuse("both ends are of one kind", "connect a LatestWriter with a LatestReader");
    }
    if (peer.size != size || peer.alignment != alignment || peer.name != name) {
        refuse(fmt::format("this end has values of {} bytes aligned to {}, the other end of {} "
                           "aligned to {}{}",
                           size, alignment, peer.size, peer.alignment,
                           peer.size == size && peer.alignment == alignment
                               ? ", which are called otherwise"
                               : ""),
               "use the same type at both ends; if it is the same and only its name differs, give "
               "it one (flow::ItemName)");
    }
    if (peer.cells > most_cells || (role == Role::writer && peer.cells == 0)) {
        throw base::Error{base::ErrorCode::protocol, attempt, link.peer_name(),
                          fmt::format("it says that it has {} cells", peer.cells),
                          "use the same version of the library at both ends"};
    }
    if (cells != 0 && peer.cells != 0 && cells != peer.cells) {
        refuse(fmt::format("this end has {} cells, the other end {}", cells, peer.cells),
               "choose the same number at both ends, or leave the writer's 0");
    }
    const bool far_fences = peer.far_fences != 0 && end::can_make_far_fences(link);
    const verbs::RemoteAddress peer_page{peer.page, peer.page_rkey};
    if (role == Role::reader) {
        sleeper->connect_to(peer_page, far_fences);
        end.sleep_by(*sleeper);
        return;
    }
    cells = static_cast<std::uint32_t>(peer.cells);
    put_versions.assign(cells, 0);
    peer_memory = {peer.memory, peer.memory_rkey};
    carrier = ring::PeerMemory::behind(link, options.carrier, {});
    peer_cells = carrier.map(peer_memory, all_bytes());
    bell = end::Bell{end.window(), page(), peer_page, far_fences};
}

// --- writer

Status LatestEnd::State::put(std::uint32_t cell, const std::byte* value) noexcept {
    if (end.is_closing()) return Status::closed;
    if (cell >= cells) return Status::too_large;
    if (end.ended() != Status::ok) [[unlikely]]
        return end.ended();
    if (const std::uint64_t now = base::ticks(); now - looked >= look_ticks) [[unlikely]] {
        looked = now;
        if (end.look() != Status::ok) return end.ended();
        if (bell.owes()) wake_peer();
    }
    const std::uint32_t version = put_versions[cell] + 1;
    if (peer_cells != nullptr) [[likely]] {
        std::byte* const all = peer_cells.get();
        // Whoever sees a word of this value sees the versions before.
        std::atomic_thread_fence(std::memory_order_release);
        store_words(all + value_at(cell, version), value, size);
        base::telling_peers();
        ring::store_word(all + cell * sizeof(std::uint64_t), word_of(version));
    } else if (const Status status = post(cell, version, value); status != Status::ok) {
        return status;
    }
    put_versions[cell] = version;
    last_cell = cell;
    ++counts.values;
    if (bell.publish(++total)) [[unlikely]]
        wake_peer();
    return Status::ok;
}

Status LatestEnd::State::post(std::uint32_t cell, std::uint32_t version,
                              const std::byte* value) noexcept {
    if (end.window().free() < 2) {
        if (end.window().reap() != Status::ok) return end.lost();
        if (end.window().free() < 2) return Status::full;
    }
    const bool is_inline = size <= max_inline;
    const std::byte* from = value;
    if (!is_inline) {
        if (!end.window().done(staged_until[stage])) {
            if (end.window().reap() != Status::ok) return end.lost();
            if (!end.window().done(staged_until[stage])) return Status::full;
        }
        std::byte* const place = memory.data() + stage * place_bytes;
        std::memcpy(place, value, size);
        from = place;
    }
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(size),
                        is_inline ? 0 : memory.slice(0, place_bytes).lkey};
    const verbs::Write write{
        .from = {&slice, 1},
        .to = peer_memory + value_at(cell, version),
        .flags = is_inline ? verbs::SendFlags::inlined : verbs::SendFlags::none};
    if (const Status status = end.window().post(write); status != Status::ok) return status;
    ++counts.requests;
    if (const Status status = post_version(cell, version, end::Signal::when_due);
        status != Status::ok) {
        return status;
    }
    if (!is_inline) {
        staged_until[stage] = end.window().posted();
        if (++stage == most_staged) stage = 0;
    }
    return Status::ok;
}

Status LatestEnd::State::post_version(std::uint32_t cell, std::uint32_t version,
                                      end::Signal signal) noexcept {
    const std::uint64_t word = word_of(version);
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
    const Status status = end.window().post(verbs::Write{.from = {&slice, 1},
                                                         .to = peer_memory + cell * sizeof word,
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
        if (version == 0 && got[cell] == 0) return Status::empty;
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
    const std::uint32_t newer = version - got[cell];
    if (newer != 0) counts.passed_over += newer - 1;
    seen += newer;
    got[cell] = version;
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
    } else if (!end.stays_awake(seen)) {
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

LatestEnd LatestEnd::connect(Role role, const ItemFacts& item, const connect::Address& address,
                             LatestOptions options, const Deadline& deadline) {
    check(role, item, options);
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    connect::Link link = connect::connect(address, link_options_of(options), deadline);
    return LatestEnd{
        std::make_unique<State>(role, item, std::move(link), std::move(options), deadline)};
}

LatestEnd LatestEnd::listen(Role role, const ItemFacts& item, const connect::Address& address,
                            LatestOptions options, const Deadline& deadline) {
    check(role, item, options);
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    connect::Listener listener = connect::Listener::listen(address, link_options_of(options));
    detail::tell_chosen_port(address, listener.address());
    return LatestEnd{connect::accept_until_set_up(
        listener, deadline, [&](connect::Link link, const Deadline& patience) {
            return std::make_unique<State>(role, item, std::move(link), options, patience);
        })};
}

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
    if (peer_cells != nullptr || end.window().posted() == 0) return end.look_now();
    const Status waited = end.wait(
        [this] {
            end::SendWindow& window = end.window();
            if (window.reap() != Status::ok) return true;
            if (!window.done(window.posted()) && !window.last_is_signaled()) {
                // Says again what is so already.
                (void)post_version(last_cell, put_versions[last_cell], end::Signal::now);
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
            if (status == Status::ok && state.bell.owes()) state.wake_peer();
            return status;
        },
        [&] { return state.end.peer_position() == state.total; },
        [&] { return state.role == Role::reader ? state.seen : state.total; }, deadline,
        state.options.wait);
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
    const std::uint32_t found = state.find_new(state.cursor);
    if (found == state.cells) return state.nothing();
    state.cursor = found + 1 == state.cells ? 0 : found + 1;
    const Status status = state.get(found, static_cast<std::byte*>(value));
    if (status == Status::ok) cell = found;
    return status;
}

Status LatestEnd::wait(const Deadline& deadline) {
    State& state = *state_;
    if (state.end.is_closing()) return Status::closed;
    if (state.is_copy()) return state.end.ended();
    const std::uint64_t slept = state.sleeper->sleeps();
    const Status status = state.end.wait_while(
        Status::empty,
        [&] {
            return state.find_new(state.cursor) != state.cells ? Status::ok : state.look_around();
        },
        deadline, state.options.wait);
    state.counts.sleeps += state.sleeper->sleeps() - slept;
    return status;
}

Status LatestEnd::look_around() noexcept {
    State& state = *state_;
    if (state.end.is_closed()) return Status::closed;
    const Status peer = state.end.look_now();
    if (state.role == Role::writer) {
        if (peer == Status::ok && state.bell.owes()) state.wake_peer();
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
    if (state_->role == Role::reader) stats.events = state_->sleeper->woken();
    return stats;
}

std::string LatestEnd::failure() const { return state_->end.failure(); }

std::string LatestEnd::explain() const {
    const State& state = *state_;
    return fmt::format(
        "latest values: {} cells of {} bytes, four places each, {}\n{}{}", state.cells, state.size,
        state.role == Role::reader ? "written by the other end, read here"
        : state.peer_cells != nullptr
            ? "stored to the reader's memory"
            : fmt::format(
                  "posted: two WRITEs for each value, {}",
                  state.size <= state.max_inline ? "inline" : "the value from registered memory"),
        state.role == Role::writer ? fmt::format("carrier: {}\n", state.carrier.reason()) : "",
        state.end.link().explain());
}

}  // namespace millrace::flow::detail
