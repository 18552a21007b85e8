#include "millrace/rpc/detail/client_core.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/wait.hpp"

namespace millrace::rpc::detail {

using base::Status;

ClientCore::ClientCore(Path path, ClientOptions chosen, Choice choice)
    : messages_{std::move(path)},
      options_{std::move(chosen)},
      choice_{std::move(choice)},
      pending_{options_.messages.window},
      budget_{options_.retry.largest_budget} {}

ClientCore::~ClientCore() {
    for (Record& record : pending_.all()) {
        if (record.is_taken()) record.type->drop(record);
    }
}

void ClientCore::refuse_thread() const {
    if (is_away()) {
        throw base::Error{base::ErrorCode::invalid_argument, "use the rpc client of an AsyncClient",
                          "", "its connection is being made anew, in a thread of its own",
                          "await a call, or call AsyncClient::reconnect() first"};
    }
    throw base::Error{base::ErrorCode::invalid_argument, "use an rpc client", "",
                      "it belongs to another thread", "call adopt() in the thread that uses it"};
}

// --- set-up

std::vector<ProcedureReport> ClientCore::ask(bool with_counts, const base::Deadline& deadline) {
    const auto refuse = [&](base::ErrorCode code, std::string why, std::string remedy) {
        throw base::Error{code, "ask for the table of procedures", "an rpc server", std::move(why),
                          std::move(remedy)};
    };
    // The first measure of how the two clocks differ.
    const Head head{.sent_at =
                        static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count())};
    std::optional<std::vector<ProcedureReport>> table;
    Error error;
    message::Outcome outcome = message::Outcome::session_lost;
    // Whatever server is there now may be asked: nothing changes by that.
    while (outcome == message::Outcome::session_lost && !deadline.expired()) {
        outcome = messages_.call(
            size_of(head), [&](std::span<std::byte> room) { write(head, room.data()); },
            [&](const message::Answer& answer) {
                if (answer.outcome == message::Outcome::ok) {
                    table = parse_table(answer.payload, with_counts);
                } else {
                    error = parse_error(answer.payload);
                }
            },
            {.procedure = static_cast<std::uint16_t>((with_counts ? report_number : table_number) |
                                                     head_bit),
             .deadline = deadline,
             .told_from = told_from(head)});
    }
    switch (outcome) {
        case message::Outcome::ok: break;
        case message::Outcome::failed:
            refuse(base::ErrorCode::protocol, error.text, "is it an rpc server?");
            break;
        case message::Outcome::timed_out:
            refuse(base::ErrorCode::timed_out, "the server did not answer in time",
                   messages_.is_shared()
                       ? "do the server's thread call serve(), and the dispatcher's run()?"
                       : "does its thread call turn() or serve()?");
            break;
        case message::Outcome::cancelled:
            refuse(base::ErrorCode::cancelled, "the wait was cancelled", "");
            break;
        default:
            refuse(base::ErrorCode::peer_lost, std::string{name_of(outcome)},
                   "what does the server's log say?");
    }
    if (!table.has_value()) {
        refuse(base::ErrorCode::protocol, "its answer is no table",
               "is it an rpc server, of the same build?");
    }
    return std::move(*table);
}

void ClientCore::read_table(const base::Deadline& deadline) {
    std::vector<ProcedureReport> table = ask(false, deadline);
    ++counts_.tables;
    procedures_.take(std::move(table));
}

void ClientCore::use(std::size_t place, Signature signature, const base::Deadline& deadline) {
    if (procedures_.has(place)) return;
    if (!procedures_.is_in_table(signature)) read_table(deadline);
    procedures_.use(place, std::move(signature));
}

void ClientCore::note(Code code, const base::Deadline& deadline) noexcept {
    if (code == Code::stale_table) procedures_.note_stale();
    // Before its time: the clocks do not run as they did.
    if (code == Code::late && !deadline.expired()) clocks_parted_ = true;
}

// --- streams that are given up

void ClientCore::give_up_stream(std::uint64_t number) noexcept {
    try {
        unwanted_streams_.push_back(number);
        say_unwanted();
    } catch (const std::exception&) {
        // The server keeps it until this client leaves.
    }
}

void ClientCore::say_unwanted() {
    while (!unwanted_streams_.empty() && !is_away()) {
        const std::array<std::uint64_t, 2> said{unwanted_streams_.back(), 1};
        std::uint64_t id = 0;
        // Where it finds no room it is said later. A connection that has ended says it by that.
        if (messages_.submit(sizeof said,
                             [&](std::span<std::byte> room) {
                                 std::memcpy(room.data(), said.data(), sizeof said);
                             },
                             id, {.procedure = pull_number}) == Status::full) {
            return;
        }
        unwanted_streams_.pop_back();
    }
}

// --- several at a time

void ClientCore::cancel_message(std::uint64_t id) {
    if (is_away()) {
        away_.taken_back.push_back(id);
    } else {
        (void)messages_.cancel(id);
    }
}

void ClientCore::end(Record& record, Code code) {
    cancel_message(record.id);
    record.type->end(record, code);
    finish(record);
}

void ClientCore::end_all(Code code) {
    for (Record& record : pending_.all()) {
        if (record.is_taken()) end(record, code);
    }
}

std::size_t ClientCore::expire() {
    const auto now = base::Clock::now();
    if (now < times_.earliest() && !times_.has_cancellable()) return 0;
    std::size_t ended = 0;
    for (Record& record : pending_.all()) {
        if (!record.is_taken()) continue;
        if (record.deadline.cancelled()) {
            end(record, Code::cancelled);
            ++ended;
        } else if (record.deadline.point() <= now) {
            ++counts_.timed_out;
            end(record, Code::timed_out);
            ++ended;
        }
    }
    times_.clear();
    for (const Record& record : pending_.all()) {
        if (record.is_taken()) times_.no_later_than(record.deadline.point());
    }
    return ended;
}

template <class Ask>
Status ClientCore::look(Ask&& ask) {
    if (!unwanted_streams_.empty()) [[unlikely]]
        say_unwanted();
    Record* done = nullptr;
    Status status = Status::ok;
    do {
        status = ask([&](const message::Answer& answer) {
            Record* const record = pending_.find(answer.id);
            if (record == nullptr) return;  // to what was said of a stream that is not wanted
            record->type->take(*record, answer);
            if (answer.outcome == message::Outcome::failed) [[unlikely]]
                note(parse_error(answer.payload).code, record->deadline);
            done = record;
        });
    } while (status == Status::ok && done == nullptr);
    if (status == Status::ok) {
        finish(*done);
    } else if ((status == Status::closed || status == Status::peer_lost) &&
               (!options_.messages.resumes || is_closed_)) {
        lose();
        end_all(status == Status::closed ? Code::closed : Code::peer_lost);
    }
    return status;
}

Status ClientCore::poll() {
    check_thread();
    const Status status = look([&](auto&& take) { return messages_.poll(take); });
    const bool looks_at_clock = status != Status::ok || (++polls_ & 63) == 0;
    if (looks_at_clock && outstanding() != 0 && expire() != 0) return Status::ok;
    return status;
}

Status ClientCore::wait(const base::Deadline& deadline) {
    check_thread();
    constexpr std::chrono::milliseconds slice{50};  // in which several cancellations are looked at
    while (true) {
        if (outstanding() == 0) {
            if (!was_full_ || is_lost_) return Status::empty;
            const Status status = messages_.wait([](const message::Answer&) {}, deadline);
            if (status == Status::timed_out || status == Status::cancelled) return status;
            was_full_ = false;
            return Status::empty;
        }
        auto limit = deadline.no_later_than(times_.earliest());
        const base::Cancellation* const of_all = times_.cancellation();
        const bool has_another =
            deadline.cancellation() != nullptr && deadline.cancellation() != of_all;
        if (of_all != nullptr && !has_another) {
            limit = limit.cancelled_by(of_all);
        } else if (times_.has_cancellable()) {
            limit = limit.no_later_than(base::Clock::now() + slice);
        }
        Status status = look([&](auto&& taken) { return messages_.wait(taken, limit); });
        if (procedures_.needs_table() && !is_lost_) read_table(deadline);
        // What was cancelled may be the calls, and not the wait.
        if (status == Status::cancelled && !deadline.cancelled()) status = Status::timed_out;
        if (status != Status::timed_out) return status;
        if (expire() != 0) return Status::ok;
        if (deadline.expired()) return status;
    }
}

bool ClientCore::cancel(std::uint64_t id) {
    check_thread();
    return take_back(id);
}

bool ClientCore::take_back(std::uint64_t id) {
    Record* const record = pending_.find(id);
    if (record == nullptr) return false;
    cancel_message(id);
    release(*record);
    record->type->drop(*record);
    return true;
}

Status ClientCore::reconnect(const base::Deadline& deadline) {
    check_thread();
    std::vector<ProcedureReport> table;
    const Status status = ask_anew(table, deadline);
    if (status == Status::ok) take_table_anew(std::move(table));
    return status;
}

/// Connects anew where that is needed, and asks for the table. Throws Error as reconnect().
Status ClientCore::ask_anew(std::vector<ProcedureReport>& table, const base::Deadline& deadline) {
    for (bool is_first = true;; is_first = false) {
        const Status status = messages_.reconnect(deadline);
        if (status != Status::ok) return status;
        try {
            table = ask(false, deadline);
            return status;
        } catch (const base::Error& error) {
            // Nobody had noticed that the connection has ended before this asked by it.
            if (!is_first || error.code() != base::ErrorCode::peer_lost) throw;
        }
    }
}

/// Throws Error as use().
void ClientCore::take_table_anew(std::vector<ProcedureReport> table) {
    ++counts_.reconnected;
    is_lost_ = false;
    vain_attempts_ = 0;
    ++counts_.tables;
    procedures_.take(std::move(table));
}

void ClientCore::go_away() noexcept {
    away_.stats = messages_.stats();
    owner_ = nullptr;
    away_.is_so = true;
}

bool ClientCore::connect_away(const base::Deadline& deadline) noexcept {
    try {
        return ask_anew(away_.table.emplace(), deadline) == Status::ok;
    } catch (const std::exception&) {
        return false;
    }
}

void ClientCore::come_back(bool is_connected) {
    adopt();
    away_.is_so = false;
    for (const std::uint64_t id : std::exchange(away_.taken_back, {})) (void)messages_.cancel(id);
    std::optional<std::vector<ProcedureReport>> table = std::exchange(away_.table, {});
    if (is_connected) take_table_anew(std::move(*table));
}

Status ClientCore::close(const base::Deadline& deadline) {
    check_thread();
    is_closed_ = true;
    const Status status = messages_.close(deadline);
    if (status == Status::timed_out || status == Status::cancelled) return status;
    is_lost_ = false;
    end_all(Code::closed);
    return status;
}

ClientStats ClientCore::stats() const noexcept {
    ClientStats stats = counts_;
    stats.messages = is_away() ? away_.stats : messages_.stats();
    return stats;
}

std::string ClientCore::failure() const { return is_away() ? "" : messages_.failure(); }

std::string ClientCore::explain() const {
    if (is_away()) return "rpc client: its connection has ended, and is being made anew";
    std::string text = fmt::format("{}\ndesign {}, {}", messages_.explain(),
                                   to_string(choice_.design), choice_.why);
    text += fmt::format(
        "\nrpc client: a call is made at most {} times, where nothing was done or the procedure "
        "is idempotent, within a budget of {:.1f} (+{} for each call); {}",
        options_.retry.attempts, budget_, options_.retry.budget_per_call,
        options_.reconnects ? "what is made again connects anew if that is needed"
                            : "who wants to connect anew calls reconnect()");
    if (options_.messages.transport == connect::Transport::rc) {
        const Posts posts = posts_of(choice_.design, true, false);
        text += fmt::format(
            "\na call by post: client {} WRITE, {} SEND, {} receive; server {} WRITE, {} SEND, {} "
            "receive; where bytes of a WRITE may land in any order each takes two, and requests to "
            "a dense server one more; by store none",
            posts.client_writes, posts.client_sends, posts.client_receives, posts.server_writes,
            posts.server_sends, posts.server_receives);
    }
    return text + procedures_.explain();
}

}  // namespace millrace::rpc::detail
