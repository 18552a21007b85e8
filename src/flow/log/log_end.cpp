// What a program calls of a log, see flow/log.hpp.
#include "millrace/flow/log.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "log/log_state.hpp"

namespace millrace::flow::detail {

base::StatisticsPage log_page(const std::string& name) {
    std::string title = fmt::format("flow log {}", name);
    title.resize(std::min(title.size(), base::StatisticsPage::longest_title));
    return base::StatisticsPage{title,
                                {"items", "first", "end", "readers", "joined", "closed", "lost",
                                 "acknowledgements", "passed", "frames", "full", "sleeps"}};
}

LogEnd::LogEnd(const ItemFacts& item, const connect::Address& address, LogOptions options,
               std::vector<LogFilter> filters)
    : state_{std::make_unique<State>(item, address, std::move(options), std::move(filters))} {}
LogEnd::LogEnd(LogEnd&&) noexcept = default;
LogEnd& LogEnd::operator=(LogEnd&&) noexcept = default;
LogEnd::~LogEnd() = default;

const connect::Address& LogEnd::address() const noexcept { return state_->door.address(); }

Status LogEnd::try_append(std::span<const std::byte> item) {
    State& state = *state_;
    if (state.door.is_due()) [[unlikely]]
        state.keep_house();
    if (state.is_closing) [[unlikely]]
        return Status::closed;
    const Status status = state.store.history().append(item);
    if (status != Status::ok) [[unlikely]] {
        if (status == Status::full) ++state.counts.full;
        return status;
    }
    ++state.counts.items;
    state.send_to_all(frames_of_append);
    if (state.is_nested) [[unlikely]]
        state.keep_loop_after_append();
    return Status::ok;
}

BatchResult LogEnd::try_append_batch(const std::byte* items, std::size_t count) {
    State& state = *state_;
    if (state.door.is_due()) [[unlikely]]
        state.keep_house();
    if (state.is_closing) return {Status::closed, 0};
    BatchResult result;
    const std::size_t size = state.store.shape().item_size;
    for (; result.count != count; ++result.count) {
        result.status = state.store.history().append({items + result.count * size, size});
        if (result.status != Status::ok) break;
    }
    if (result.status == Status::full) ++state.counts.full;
    state.counts.items += result.count;
    state.send_to_all(frames_of_turn);
    if (state.is_nested) state.keep_loop_after_append();
    return result;
}

Status LogEnd::append(std::span<const std::byte> item, const Deadline& deadline) {
    Status status = try_append(item);
    if (status != Status::full) [[likely]]
        return status;
    const Status waited = state_->wait(
        [&] {
            status = try_append(item);
            return status != Status::full;
        },
        deadline);
    return waited == Status::ok ? status : waited;
}

Status LogEnd::wait_acknowledged(std::uint64_t position, std::uint32_t readers,
                                 const Deadline& deadline) {
    State& state = *state_;
    if (state.is_closing) return Status::closed;
    return state.wait([&] { return state.count_acknowledged(position, readers) >= readers; },
                      deadline);
}

Status LogEnd::wait_acknowledged(std::uint64_t position, const std::vector<std::string>& names,
                                 const Deadline& deadline) {
    State& state = *state_;
    if (state.is_closing) return Status::closed;
    return state.wait([&] { return state.store.book().least_of(names) >= position; }, deadline);
}

Status LogEnd::flush(const Deadline& deadline) {
    State& state = *state_;
    return state.wait(
        [&] {
            return std::ranges::all_of(state.sessions, [](const auto& one) {
                return !one->is_reading() || (one->has_all && one->is_settled);
            });
        },
        deadline);
}

Status LogEnd::serve(const Deadline& deadline) {
    return state_->wait([] { return false; }, deadline);
}

Status LogEnd::close(const Deadline& deadline) { return state_->close(deadline); }

void LogEnd::sync() {
    state_->door.require_owner("bring a log to its disk");
    state_->store.sync();
}

std::size_t LogEnd::look_around() {
    State& state = *state_;
    if (state.is_closing) return state.counts.readers;
    state.keep_house();
    state.serve_once();
    for (std::size_t i = 0; i < state.sessions.size();) {
        LogSession& session = *state.sessions[i];
        const Status status = session.has_joined() ? session.items->look_around() : Status::ok;
        if (status == Status::closed || status == Status::peer_lost) {
            if (state.take_and_look(i)) state.leave(i, status);
        } else {
            ++i;
        }
    }
    if (state.is_nested) state.keep_loop();
    return state.counts.readers;
}

int LogEnd::descriptor() {
    State& state = *state_;
    state.door.require_owner("put into a loop");
    state.is_nested = true;
    state.busy_at = base::ticks();
    state.door.hub().post([] {});
    return state.door.hub().descriptor();
}

void LogEnd::adopt() noexcept { state_->door.hub().adopt(); }
void LogEnd::on_change(Watcher watcher) { state_->watcher = std::move(watcher); }

void LogEnd::forget(const std::string& name) {
    state_->door.require_owner("forget a consumer");
    state_->store.forget(name);
}

std::uint64_t LogEnd::first() const noexcept { return state_->store.history().first(); }
std::uint64_t LogEnd::end() const noexcept { return state_->store.history().end(); }

Status LogEnd::read(std::uint64_t position, std::span<const std::byte>& item) const {
    if (position < first() || position >= end()) return Status::empty;
    item = state_->store.history().item(position);
    return Status::ok;
}

LogEpoch LogEnd::epoch() const noexcept { return state_->store.epoch(); }

std::vector<LogConsumer> LogEnd::consumers() const {
    std::vector<LogConsumer> all;
    for (const auto& session : state_->sessions) {
        if (session->has_joined()) all.push_back(session->facts());
    }
    for (const LogBook::Entry& entry : state_->store.book().entries()) {
        if (entry.name.empty() ||
            std::ranges::find(all, entry.name, &LogConsumer::name) != all.end()) {
            continue;
        }
        LogConsumer& one = all.emplace_back();
        one.name = entry.name;
        one.acknowledged = entry.position;
    }
    return all;
}

LogStats LogEnd::stats() const noexcept { return state_->now(); }

std::string LogEnd::explain() const {
    const State& state = *state_;
    const LogRetention& retention = state.options.retention;
    const LogStats stats = state.now();
    std::string text = fmt::format(
        "log at {}: items {} to {} of the sequence {:016x}, taken up again {} times\n"
        "kept: {} bytes at most, an eighth goes at a time{}{}\n"
        "where: {}\n"
        "per item: 1 copy into history; for each reader that reads live 1 frame, which is that of "
        "an item or of all that have gathered\n"
        "readers: {} of at most {}, two queues each\n",
        state.door.address().to_string(), stats.first, stats.end, state.store.epoch().sequence,
        state.store.epoch().number, retention.bytes,
        retention.age.count() == 0
            ? std::string{}
            : fmt::format(", what is older than {} s",
                          std::chrono::duration<double>(retention.age).count()),
        retention.until_acknowledged.empty()
            ? std::string{}
            : fmt::format(", and nothing that {} named consumers have not acknowledged",
                          retention.until_acknowledged.size()),
        state.store.directory() == nullptr
            ? std::string{"in memory: a log that begins anew is another sequence"}
            : fmt::format("in files of {}: a log that begins anew goes on",
                          state.options.directory),
        stats.readers, state.options.max_readers);
    for (const auto& session : state.sessions) {
        if (!session->has_joined()) continue;
        return text + "the items' queue of one of them: " + session->items->explain();
    }
    return text;
}

}  // namespace millrace::flow::detail
