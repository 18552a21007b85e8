// A log's reader: its two queues, and how it joins, reads and joins again. See flow/log_reader.hpp.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "log/door.hpp"
#include "log/follower.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/flow/log_reader.hpp"

namespace millrace::flow::detail {

using base::Deadline;
using base::Status;

namespace {

constexpr const char* attempt_join = "read a log";
/// An acknowledgement that found no room waits for no more than that, while its reader sleeps.
constexpr std::chrono::milliseconds look_for_requests{1};

void check(const LogReaderOptions& options) {
    if (options.name.size() <= longest_log_name) return;
    throw base::Error{base::ErrorCode::invalid_argument, attempt_join,
                      fmt::format("a name of {} bytes", options.name.size()),
                      fmt::format("it has at most {}", longest_log_name), "choose a shorter one"};
}

/// Why a log says no, and what to do.
std::pair<std::string, std::string> words_of(LogRefusal refusal, std::uint64_t end) {
    switch (refusal) {
        case LogRefusal::other_items:
            return {"its items have another size, alignment or name",
                    "use the same item type at both ends (flow/item_name.hpp)"};
        case LogRefusal::other_sequence:
            return {
                "it has begun anew since: it is another sequence, in which that position means "
                "another item",
                "begin at LogStart::earliest(), if the items may come again"};
        case LogRefusal::lost_items:
            return {fmt::format("it lost items when its host ended: some that this reader has had "
                                "are replaced; it has items up to {}",
                                end),
                    "undo what was made of those, and begin where the log went on"};
        case LogRefusal::beyond_end:
            return {
                fmt::format("that position was never reached: the next item will be at {}", end),
                "begin at LogStart::latest()"};
        case LogRefusal::small_ring:
            return {"half of the ring that both ends agreed on does not hold its longest item",
                    "ask for more bytes (LogReaderOptions::queue.ring.capacity)"};
        case LogRefusal::full_book:
            return {"it knows as many names as it can keep acknowledgements of",
                    "call Log::forget() for names that will not come again"};
        case LogRefusal::other_filter:
            return {{}, "ask for one of these, or add that one to the log's flow::Filtered"};
        case LogRefusal::none: break;
    }
    return {"it did not say why", "use the same version of the library at both ends"};
}

}  // namespace

struct LogReaderEnd::State {
    using Requests = Producer<LogRequest>;
    using Items = Consumer<Bytes>;

    State(const ItemFacts& its_item, const connect::Address& its_address, LogReaderOptions chosen)
        : item{its_item}, address{its_address}, options{std::move(chosen)} {
        check(options);
    }

    // ---- joining

    template <class End>
    End connect_queue(LogQueue queue, std::uint64_t crew, const Deadline& deadline) {
        Options made = log_queue_options(options.queue, queue);
        made.ring.crew = {.number = crew, .size = 2};
        connect::LinkOptions link = log_link_options(made, queue);
        return End::over({made.endpoint, connect::connect(address, std::move(link), deadline)},
                         made, deadline);
    }
    /// `acknowledged`: what the log may not know yet.
    void join(const LogStart& from, std::uint64_t acknowledged, LogEpoch known,
              const Deadline& deadline) {
        items.reset();
        requests.reset();
        follower = LogFollower{log_shape_of(item)};
        has_frame = has_chosen = false;
        ended = Status::ok;
        why.clear();
        const std::uint64_t crew = base::random_bits() | 1;
        requests.emplace(connect_queue<Requests>(LogQueue::requests, crew, deadline));
        items.emplace(connect_queue<Items>(LogQueue::items, crew, deadline));

        Status status = Status::ok;
        if (!options.queue.filter.is_none()) {
            status = requests->enqueue(request_of(options.queue.filter.asked()), deadline);
        }
        LogRequest request;
        request.ask = static_cast<std::uint32_t>(LogAsk::join);
        request.from = static_cast<std::uint32_t>(from.at);
        request.position = from.place;
        request.acknowledged = acknowledged;
        request.sequence = from.epoch.sequence != 0 ? from.epoch.sequence : known.sequence;
        request.epoch = from.epoch.sequence != 0 ? from.epoch.number : known.number;
        const LogShape shape = log_shape_of(item);
        request.item_size = shape.item_size;
        request.item_alignment = shape.item_alignment;
        request.item_name = shape.item_name;
        request.name_length = static_cast<std::uint32_t>(options.name.size());
        options.name.copy(request.name, sizeof request.name);
        if (status == Status::ok) status = requests->enqueue(request, deadline);
        while (status == Status::ok && follower.state() == LogFollower::State::joining) {
            status = hear(deadline.no_later_than(base::Clock::now() + look_for_requests));
            // A log that was killed and begins anew between the two queues has one of them alone.
            if (status == Status::timed_out && !deadline.expired()) status = alive();
        }
        if (status != Status::ok || follower.state() != LogFollower::State::reading) {
            fail_to_join(status);
        }
    }
    static LogRequest request_of(const ring::FilterAsked& filter) noexcept {
        LogRequest request;
        request.ask = static_cast<std::uint32_t>(LogAsk::filter);
        request.from =
            static_cast<std::uint32_t>(filter.stops ? WhenThrown::stop : WhenThrown::skip);
        request.item_name = filter.name_hash;
        request.item_alignment = filter.alignment;
        request.name_length = static_cast<std::uint32_t>(filter.object.size());
        std::memcpy(request.name, filter.object.data(), filter.object.size());
        return request;
    }
    /// `ok`: the log takes requests, as far as is known.
    [[nodiscard]] Status alive() noexcept {
        const Status status = requests->look_around();
        return status == Status::full ? Status::ok : status;
    }
    [[noreturn]] void fail_to_join(Status status) const {
        if (follower.state() == LogFollower::State::refused) {
            auto [cause, remedy] = words_of(follower.refusal(), follower.first_kept());
            if (follower.refusal() == LogRefusal::other_filter) {
                cause = fmt::format("it was asked for the filter '{}': {}",
                                    options.queue.filter.name(), follower.text());
            } else if (follower.refusal() == LogRefusal::other_items &&
                       !options.queue.filter.is_none()) {
                cause = fmt::format("what the filter '{}' makes of its items is another type",
                                    options.queue.filter.name());
            }
            throw base::Error{base::ErrorCode::refused, attempt_join, items->peer(), cause, remedy};
        }
        if (status == Status::timed_out || status == Status::cancelled) {
            throw base::Error{status == Status::timed_out ? base::ErrorCode::timed_out
                                                          : base::ErrorCode::cancelled,
                              attempt_join, items->peer(), "it has not answered yet",
                              "does its owner make calls, as serve() or look_around()?"};
        }
        throw base::Error{base::ErrorCode::peer_lost, attempt_join, items->peer(),
                          "it was lost before it answered: " + failure(),
                          "connect again: was it killed just now?"};
    }

    // ---- reading

    /// The next frame, of which the follower is told. `ok`; what peek answers.
    template <class... Until>
    Status hear(const Until&... deadline) {
        if (has_frame) {
            items->release();
            has_frame = false;
        }
        if (ended != Status::ok) return ended;
        std::span<const std::byte> frame;
        const Status status = items->peek(frame, deadline...);
        if (status != Status::ok) return status;
        has_frame = true;
        heard = follower.take(frame);
        return heard == LogFollower::Heard::wrong ? distrust(follower.fault()) : Status::ok;
    }
    Status distrust(const char* fault) {
        why = fmt::format("the log at {} sent {}", address.to_string(), fault);
        return ended = Status::peer_lost;
    }
    /// `peek(deadline…)` until there are items.
    template <class Hear>
    Status look(Run& run, const Hear& hear_next) {
        for (;;) {
            if (has_chosen) {
                if (take_chosen(run)) return Status::ok;
                if (ended != Status::ok) return ended;
            }
            switch (follower.state()) {
                case LogFollower::State::stopped:
                    why = fmt::format("the filter '{}' threw for the item at {}: {}",
                                      options.queue.filter.name(), follower.thrown_at(),
                                      follower.text());
                    return ended = Status::peer_lost;
                case LogFollower::State::passed: return Status::full;
                case LogFollower::State::displaced:
                    why = "another reader has come by the name " + options.name;
                    return ended = Status::peer_lost;
                default: break;
            }
            (void)send_pending();  // how the log has ended, the items tell
            const bool was_skipping = follower.state() == LogFollower::State::skipping;
            follower.move_to(run.position);
            const Status status = hear_next();
            if (status != Status::ok) return status;
            if (heard == LogFollower::Heard::chosen) {
                ++counts.frames;
                has_chosen = true;
                continue;
            }
            if (heard == LogFollower::Heard::items) {
                ++counts.frames;
                run.at = follower.items().data();
                run.end = run.at + follower.items().size();
                return Status::ok;
            }
            // One that is refused or displaced is told by its state, in the next round.
            if (was_skipping && follower.state() == LogFollower::State::reading) {
                counts.skipped += follower.position() - run.position;
                run.position = follower.position();
            }
        }
    }
    /// One of the items that a filter let pass. False: none is left, and run begins after them.
    bool take_chosen(Run& run) noexcept {
        const auto chosen = follower.next_chosen();
        if (follower.is_wrong()) {
            (void)distrust(follower.fault());
            return false;
        }
        const std::uint64_t position = chosen ? chosen->position : follower.chosen_end();
        counts.left_out += position - run.position;
        run.position = position;
        has_chosen = chosen.has_value();
        if (!has_chosen) return false;
        const std::span<const std::byte> bytes = item.size == 0 ? chosen->record : chosen->item;
        run.at = bytes.data();
        run.end = run.at + bytes.size();
        return true;
    }
    // ---- asking

    /// `ok`: said, or to be said by a later call; `closed`, `peer_lost`.
    Status send_pending() noexcept {
        if (!is_pending()) [[likely]]
            return Status::ok;
        LogRequest request;
        Status status = Status::ok;
        if (is_skip_due) {
            request.ask = static_cast<std::uint32_t>(LogAsk::skip);
            status = requests->try_enqueue(request);
            is_skip_due = status != Status::ok;
        }
        if (status == Status::ok && said < acknowledged) {
            request.ask = static_cast<std::uint32_t>(LogAsk::acknowledge);
            request.position = acknowledged;
            status = requests->try_enqueue(request);
            if (status == Status::ok) said = acknowledged;
        }
        return status == Status::full ? Status::ok : status;
    }
    [[nodiscard]] bool is_pending() const noexcept { return is_skip_due || said < acknowledged; }

    [[nodiscard]] std::string failure() const {
        if (!why.empty() || !items.has_value()) return why;
        const std::string failure = items->failure();
        return failure.empty() ? requests->failure() : failure;
    }

    ItemFacts item;
    connect::Address address;
    LogReaderOptions options;
    std::optional<Requests> requests;
    std::optional<Items> items;
    LogFollower follower{LogShape{}};
    bool has_frame = false;   ///< the last one is not released yet
    bool has_chosen = false;  ///< items of that one are left, or how far it goes
    LogFollower::Heard heard{};
    Status ended = Status::ok;
    std::string why;
    LogEpoch epoch;
    std::uint64_t acknowledged = 0;
    std::uint64_t said = 0;  ///< of these, what is on its way
    bool is_skip_due = false;
    std::uint64_t began = 0;
    LogReaderStats counts;
};

LogReaderEnd::LogReaderEnd(const ItemFacts& item, const connect::Address& address,
                           LogReaderOptions options, const Deadline& deadline)
    : state_{std::make_unique<State>(item, address, std::move(options))} {
    State& state = *state_;
    state.join(state.options.from, 0, {}, deadline);
    const LogFacts& facts = state.follower.facts();
    state.epoch = {facts.sequence, static_cast<std::uint32_t>(facts.epoch)};
    state.began = run_.position = state.follower.position();
}
LogReaderEnd::LogReaderEnd(LogReaderEnd&&) noexcept = default;
LogReaderEnd& LogReaderEnd::operator=(LogReaderEnd&&) noexcept = default;
LogReaderEnd::~LogReaderEnd() = default;

Status LogReaderEnd::look() {
    State& state = *state_;
    return state.look(run_, [&] { return state.hear(); });
}

Status LogReaderEnd::look(const Deadline& deadline) {
    State& state = *state_;
    for (;;) {
        const Status status = state.look(run_, [&] {
            // What could not be said yet is said by this end's calls alone.
            return state.hear(state.is_pending()
                                  ? deadline.no_later_than(base::Clock::now() + look_for_requests)
                                  : deadline);
        });
        if (status != Status::timed_out || deadline.expired()) return status;
    }
}

bool LogReaderEnd::record(std::span<const std::byte>& item) noexcept {
    if (log_record_at({run_.at, run_.end}, item)) return true;
    run_.at = run_.end;
    (void)state_->distrust("a part of an item");
    return false;
}

void LogReaderEnd::pass_record(std::size_t size) noexcept {
    run_.at += log_record_bytes(size);
    ++run_.position;
}

Status LogReaderEnd::acknowledge(std::uint64_t position) {
    State& state = *state_;
    if (state.options.name.empty() || position > run_.position) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "acknowledge items of a log",
            fmt::format("everything before {}", position),
            state.options.name.empty()
                ? std::string{"this reader has no name to keep that under"}
                : fmt::format("this reader has taken everything before {}, and no more",
                              run_.position),
            state.options.name.empty() ? "set LogReaderOptions::name"
                                       : "acknowledge what was taken"};
    }
    if (state.ended != Status::ok) return state.ended;
    if (position > state.acknowledged) {
        state.acknowledged = position;
        ++state.counts.acknowledgements;
    }
    return state.send_pending();
}

Status LogReaderEnd::flush(const Deadline& deadline) {
    State& state = *state_;
    while (state.is_pending()) {
        LogRequest request;
        request.ask =
            static_cast<std::uint32_t>(state.is_skip_due ? LogAsk::skip : LogAsk::acknowledge);
        request.position = state.acknowledged;
        const Status status = state.requests->enqueue(request, deadline);
        if (status != Status::ok) return status;
        if (!std::exchange(state.is_skip_due, false)) state.said = state.acknowledged;
    }
    return state.requests->flush(deadline);
}

Status LogReaderEnd::close(const Deadline& deadline) {
    State& state = *state_;
    if (state.is_pending()) {
        const Status status = flush(deadline);
        if (status == Status::timed_out || status == Status::cancelled) return status;
    }
    const Status status = state.requests->close(deadline);
    if (status == Status::timed_out || status == Status::cancelled) return status;
    // The log hears how far this end has come by what it has given back.
    if (run_.at == run_.end && std::exchange(state.has_frame, false)) state.items->release();
    state.items->close();
    run_.at = run_.end;
    return status;
}

void LogReaderEnd::resume(const Deadline& deadline) {
    State& state = *state_;
    run_.at = run_.end = nullptr;
    const LogStart from = LogStart::position(run_.position, state.epoch);
    state.join(from, state.acknowledged, state.epoch, deadline);
    state.said = state.acknowledged;
    state.is_skip_due = false;
    const LogFacts& facts = state.follower.facts();
    state.epoch = {facts.sequence, static_cast<std::uint32_t>(facts.epoch)};
}

Status LogReaderEnd::skip() noexcept {
    State& state = *state_;
    if (state.ended != Status::ok) return state.ended;
    if (state.follower.state() != LogFollower::State::passed) return Status::empty;
    state.follower.skip();
    state.is_skip_due = true;
    return state.send_pending();
}

int LogReaderEnd::descriptor() { return state_->items->descriptor(); }
std::uint64_t LogReaderEnd::first_kept() const noexcept { return state_->follower.first_kept(); }
LogEpoch LogReaderEnd::epoch() const noexcept { return state_->epoch; }
const std::string& LogReaderEnd::peer() const noexcept { return state_->items->peer(); }
std::string LogReaderEnd::failure() const { return state_->failure(); }

LogReaderStats LogReaderEnd::stats() const noexcept {
    LogReaderStats stats = state_->counts;
    stats.items = run_.position - state_->began - stats.skipped - stats.left_out;
    stats.threw = state_->follower.threw();
    return stats;
}

std::string LogReaderEnd::explain() const {
    const State& state = *state_;
    return fmt::format(
        "reader of the log at {}{}: at {} of the sequence {:016x}, taken up again {} times\n"
        "per item: 1 copy out of the ring; an acknowledgement is an item of a queue of its own\n"
        "{}"
        "the items' queue: {}",
        state.address.to_string(),
        state.options.name.empty() ? std::string{}
                                   : fmt::format(" by the name '{}'", state.options.name),
        run_.position, state.epoch.sequence, state.epoch.number,
        state.options.queue.filter.is_none()
            ? std::string{}
            : fmt::format("filter: '{}', which the log asks before it sends an item; {} left out\n",
                          state.options.queue.filter.name(), stats().left_out),
        state.items->explain());
}

}  // namespace millrace::flow::detail
