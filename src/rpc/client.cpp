#include "millrace/rpc/client.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/wait.hpp"

namespace millrace::rpc {

using base::Status;

namespace detail {

namespace {

/// It is the connection that was wrong.
[[nodiscard]] bool has_ended(Code code) noexcept {
    return code == Code::not_sent || code == Code::peer_lost || code == Code::closed;
}

}  // namespace

ClientCore::ClientCore(Path path, ClientOptions chosen, Choice choice)
    : messages_{std::move(path)},
      options_{std::move(chosen)},
      choice_{std::move(choice)},
      records_{std::make_unique<Record[]>(std::bit_ceil(std::size_t{options_.messages.window}))},
      mask_{std::bit_ceil(std::size_t{options_.messages.window}) - 1},
      budget_{options_.retry.largest_budget} {}

ClientCore::~ClientCore() {
    for (std::size_t i = 0; i <= mask_; ++i) {
        if (records_[i].type != nullptr) records_[i].type->drop(records_[i]);
    }
}

void ClientCore::refuse_thread() const {
    if (is_away_) {
        throw base::Error{base::ErrorCode::invalid_argument, "use the rpc client of an AsyncClient",
                          "", "its connection is being made anew, in a thread of its own",
                          "await a call, or call AsyncClient::reconnect() first"};
    }
    throw base::Error{base::ErrorCode::invalid_argument, "use an rpc client", "",
                      "it belongs to another thread", "call adopt() in the thread that uses it"};
}

void ClientCore::refuse_procedure() const {
    throw base::Error{base::ErrorCode::invalid_argument, "call a procedure", "",
                      "the client did not ask the server for it",
                      "name it in connect<...>(), or call use<...>() first"};
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
    table_ = ask(false, deadline);
    resolve_all();
}

void ClientCore::resolve_all() {
    ++counts_.tables;
    needs_table_ = false;
    for (const Used& used : used_) resolve(used);
}

void ClientCore::use(std::size_t place, Signature signature, const base::Deadline& deadline) {
    if (place < numbers_.size() && numbers_[place] != 0) return;
    const auto is_known = [&] {
        return std::any_of(table_.begin(), table_.end(), [&](const ProcedureReport& one) {
            return one.signature.name == signature.name;
        });
    };
    if (!is_known()) read_table(deadline);
    if (!is_known()) {
        throw base::Error{
            base::ErrorCode::not_found, "find a procedure", fmt::format("'{}'", signature.name),
            fmt::format("the server has {} procedures, and none of that name", table_.size()),
            "see what it has: millrace rpc list"};
    }
    const Used used{place, std::move(signature)};
    resolve(used);
    used_.push_back(used);
}

void ClientCore::resolve(const Used& used) {
    if (numbers_.size() <= used.place) numbers_.resize(used.place + 1);
    numbers_[used.place] = 0;
    for (const ProcedureReport& one : table_) {
        if (one.signature.name != used.signature.name) continue;
        const std::string why = why_different(used.signature, one.signature);
        if (!why.empty()) {
            throw base::Error{base::ErrorCode::invalid_argument, "find a procedure",
                              fmt::format("'{}'", used.signature.name), why,
                              "build both sides from the same declaration of it"};
        }
        numbers_[used.place] = one.number;
        return;
    }
}

Path connect_path(const connect::Address& address, ClientOptions& options,
                  std::size_t response_bytes, const base::Deadline& deadline, Choice& chosen) {
    message::ClientOptions& messages = options.messages;
    if (messages.requests != Transfer::write || messages.answers != Transfer::write) {
        throw base::Error{base::ErrorCode::invalid_argument, "make an rpc client",
                          "ClientOptions::messages", "it says how requests and answers travel",
                          "say that by ClientOptions::design"};
    }
    const bool is_by_rc = messages.transport == connect::Transport::rc;
    std::vector<Choice> choices;
    if (const auto* const design = std::get_if<Design>(&options.design)) {
        choices.push_back({*design, "as the program chose"});
    } else if (!is_by_rc) {
        choices.push_back({Design{}, fmt::format("by {} there is nothing to choose",
                                                 name_of(messages.transport))});
    } else {
        Automatic load = std::get<Automatic>(options.design);
        if (load.response_bytes == 0)
            load.response_bytes = std::max<std::size_t>(response_bytes, 64);
        if (messages.endpoint == nullptr) messages.endpoint = connect::Endpoint::shared();
        const Profile& profile =
            options.profile != nullptr ? *options.profile : Profile::built_in();
        // A dispatcher offers no session that resumes.
        choices = profile.choose(device_kind(*messages.endpoint), load,
                                 options.dispatcher != nullptr && !messages.resumes);
    }
    std::string refused;
    for (std::size_t i = 0;; ++i) {
        chosen = choices[i];
        chosen.why += refused;
        const Design design = chosen.design;
        if (design.connection == Connection::dispatcher && options.dispatcher == nullptr) {
            throw base::Error{base::ErrorCode::invalid_argument, "make an rpc client",
                              fmt::format("design {}", to_string(design)), "there is no dispatcher",
                              "name one in ClientOptions::dispatcher"};
        }
        message::ClientOptions said = messages;
        said.requests = design.request;
        said.answers = design.response;
        said.large.keeps_order = true;
        said.service = server_service;
        try {
            if (design.connection == Connection::dispatcher) {
                return Path{options.dispatcher, address, said, deadline};
            }
            return Path{message::Client::connect(address, std::move(said), deadline)};
        } catch (const base::Error& error) {
            // What the server does not allow is not for a choice of our own.
            if (error.code() != base::ErrorCode::refused || i + 1 == choices.size()) throw;
            refused += fmt::format("; {} was refused: {}", to_string(design), error.cause());
        }
    }
}

// --- calls made again

void ClientCore::note(Code code, const base::Deadline& deadline) noexcept {
    if (code == Code::stale_table) needs_table_ = true;
    // Before its time: the clocks do not run as they did.
    if (code == Code::late && !deadline.expired()) clocks_parted_ = true;
}

bool ClientCore::pays(const Attempt& attempt) {
    if (attempt.made >= options_.retry.attempts) return false;
    if (budget_ < 1) {
        ++counts_.out_of_budget;
        return false;
    }
    budget_ -= 1;
    return true;
}

bool ClientCore::may_repeat(Code code, const Attempt& attempt) const noexcept {
    const bool is_unknown = has_ended(code) || code == Code::session_lost ||
                            code == Code::expired || code == Code::dropped;
    return !is_closed_ && (is_safe_to_repeat(code) || (is_unknown && attempt.is_idempotent));
}

std::chrono::nanoseconds ClientCore::pause_before(const Attempt& attempt) const noexcept {
    const auto doubled =
        options_.retry.pause * (std::int64_t{1} << std::min(attempt.made - 1, 20U));
    const auto pause = std::min(doubled, options_.retry.longest_pause);
    // Clients that failed together do not come back together.
    return pause - pause / 2 * static_cast<std::int64_t>(base::ticks() % 64) / 64;
}

bool ClientCore::repeats(Code code, Attempt& attempt, const base::Deadline& deadline) {
    if (!may_repeat(code, attempt) || !pays(attempt)) return false;
    const bool is_over = has_ended(code);
    if (is_over && !options_.reconnects) return false;
    // The first time anew at once, where it is the connection or the table that was wrong.
    if (code == Code::overloaded || code == Code::draining || attempt.made > 1) {
        base::NapParker nap;
        const Status waited =
            base::wait_until([] { return false; },
                             deadline.no_later_than(base::Clock::now() + pause_before(attempt)),
                             options_.messages.wait, nap);
        if (waited == Status::cancelled || deadline.expired()) return false;
    }
    if (is_over && !reconnects(deadline)) {
        // Nobody is there: perhaps a little later.
        ++attempt.made;
        return repeats(Code::not_sent, attempt, deadline);
    }
    if (needs_table_) {
        try {
            read_table(deadline);
        } catch (const base::Error&) {
            return false;
        }
    }
    if (numbers_[attempt.place] == 0) return false;  // the new server does not have it
    ++attempt.made;
    ++counts_.repeated;
    return true;
}

bool ClientCore::reconnects(const base::Deadline& deadline) {
    try {
        return reconnect(deadline) == Status::ok;
    } catch (const base::Error&) {
        return false;
    }
}

std::optional<base::Clock::time_point> ClientCore::again_at(Code code, Attempt& attempt,
                                                            const base::Deadline& deadline) {
    if (!may_repeat(code, attempt) || (has_ended(code) && !may_reconnect())) return std::nullopt;
    const auto at = base::Clock::now() + pause_before(attempt);
    if (at >= deadline.point() || deadline.cancelled() || !pays(attempt)) return std::nullopt;
    ++attempt.made;
    ++counts_.repeated;
    return at;
}

Status ClientCore::submit_again(std::unique_ptr<AgainCall> call, std::uint64_t& id) {
    check_thread();
    AgainCall& its = *call;
    // Before it is sent: what could not be kept would have nobody to end it.
    again_.push_back(std::move(call));
    Status status = Status::closed;
    try {
        status = its.send(*this);
    } catch (...) {
        (void)take(its);
        throw;
    }
    if (status == Status::ok) {
        its.first_id = its.id;
    } else if ((status == Status::closed || status == Status::peer_lost) &&
               waits_for_connection(its)) {
        its.first_id = unsent_++;
        put_off(its, its.due);
    } else {
        (void)take(its);
        return status;
    }
    earn();
    id = its.first_id;
    return Status::ok;
}

/// It could not be sent, as the connection has ended. False: it is over.
bool ClientCore::waits_for_connection(AgainCall& call) {
    const auto at = again_at(Code::not_sent, call.attempt, call.deadline);
    if (!at.has_value()) return false;
    call.due = *at;
    lose();
    return true;
}

void ClientCore::put_off(AgainCall& call, base::Clock::time_point due) noexcept {
    call.is_put_off = true;
    call.due = due;
    earliest_ = std::min(earliest_, due);
    ++put_off_;
    if (call.deadline.cancellation() != nullptr) note_cancellable(call.deadline);
}

bool ClientCore::puts_off(AgainCall& call, Code code) {
    const auto at = again_at(code, call.attempt, call.deadline);
    if (!at.has_value()) return false;
    call.code = code;
    if (has_ended(code)) lose();
    put_off(call, *at);
    return true;
}

std::unique_ptr<AgainCall> ClientCore::take(AgainCall& call) noexcept {
    if (call.is_put_off) {
        call.is_put_off = false;
        --put_off_;
        if (call.deadline.cancellation() != nullptr) --cancellable_;
    }
    const auto found = std::find_if(again_.begin(), again_.end(),
                                    [&](const auto& one) { return one.get() == &call; });
    std::unique_ptr<AgainCall> taken = std::move(*found);
    again_.erase(found);
    return taken;
}

AgainCall* ClientCore::due_again(base::Clock::time_point now) noexcept {
    AgainCall* low = nullptr;  // only where no other one is due
    for (const auto& one : again_) {
        if (!one->is_put_off) continue;
        if (one->deadline.point() <= now || one->deadline.cancelled()) return one.get();
        if (is_lost_ || one->due > now) continue;
        if (one->priority != Priority::low) return one.get();
        if (low == nullptr) low = one.get();
    }
    return low;
}

/// Those that were put off, and whose time has come. How many are over by that.
std::size_t ClientCore::send_again() {
    constexpr std::chrono::milliseconds room{1};
    std::size_t ended = 0;
    const auto now = base::Clock::now();
    // Whoever is told that a call is over may do anything to the others.
    while (put_off_ != 0) {
        AgainCall* const call = due_again(now);
        if (call == nullptr) break;
        Code code = call->code;
        Status status = Status::closed;
        bool was_tried = false;
        if (call->deadline.cancelled()) {
            code = Code::cancelled;
        } else if (call->deadline.expired()) {
            ++counts_.timed_out;
            code = Code::timed_out;
        } else if (knows(call->attempt)) {
            status = call->send(*this);
            was_tried = true;
        }
        if (was_tried && (status == Status::closed || status == Status::peer_lost) &&
            waits_for_connection(*call)) {
            continue;
        }
        if (status == Status::full) {
            call->due = now + room;
            continue;
        }
        if (status == Status::ok) {
            call->is_put_off = false;
            --put_off_;
            if (call->deadline.cancellation() != nullptr) --cancellable_;
            continue;
        }
        take(*call)->end(code);
        ++ended;
    }
    return ended;
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
    while (!unwanted_streams_.empty() && !is_away_) {
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
    if (is_away_) {
        taken_back_.push_back(id);
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
    for (std::size_t i = 0; i <= mask_ && outstanding_ != 0; ++i) {
        if (records_[i].type != nullptr) end(records_[i], code);
    }
    // What is made again waits for another connection.
    while (put_off_ != 0 && !is_lost_) {
        const auto one = std::find_if(again_.begin(), again_.end(),
                                      [](const auto& each) { return each->is_put_off; });
        take(**one)->end(code);
    }
}

std::size_t ClientCore::expire() {
    const auto now = base::Clock::now();
    if (now < earliest_ && cancellable_ == 0) return 0;
    std::size_t ended = 0;
    const auto latest = base::Clock::time_point::max();
    for (std::size_t i = 0; i <= mask_; ++i) {
        Record& record = records_[i];
        if (record.type == nullptr) continue;
        if (record.deadline.cancelled()) {
            end(record, Code::cancelled);
            ++ended;
        } else if (record.deadline.point() <= now) {
            ++counts_.timed_out;
            end(record, Code::timed_out);
            ++ended;
        }
    }
    if (put_off_ != 0) ended += send_again();
    earliest_ = latest;
    for (const auto& one : again_) {
        if (!one->is_put_off) continue;
        earliest_ = std::min(earliest_, one->deadline.point());
        if (!is_lost_) earliest_ = std::min(earliest_, one->due);
    }
    for (std::size_t i = 0; i <= mask_; ++i) {
        if (records_[i].type != nullptr) {
            earliest_ = std::min(earliest_, records_[i].deadline.point());
        }
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
            Record* const record = find(answer.id);
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
        auto limit = deadline.no_later_than(earliest_);
        const bool has_another =
            deadline.cancellation() != nullptr && deadline.cancellation() != cancellation_;
        if (cancellable_ != 0 && cancellation_ != nullptr && !has_another) {
            limit = limit.cancelled_by(cancellation_);
        } else if (cancellable_ != 0) {
            limit = limit.no_later_than(base::Clock::now() + slice);
        }
        Status status = Status::timed_out;
        if (outstanding_ != 0) {
            const std::size_t before = outstanding();
            status = look([&](auto&& taken) { return messages_.wait(taken, limit); });
            // What is made again waits for another connection; the others have been told.
            if (is_lost_ && put_off_ != 0 && status != Status::ok) {
                if (outstanding() < before) return Status::ok;
                if (status != Status::cancelled) status = Status::timed_out;
            }
        } else if (is_lost_ && base::Clock::now() >= retry_at_) {
            status = connect_anew(limit);
        } else {  // until what is put off is due
            base::NapParker nap;
            status = base::wait_until([] { return false; },
                                      is_lost_ ? limit.no_later_than(retry_at_) : limit,
                                      options_.messages.wait, nap);
        }
        if (needs_table_ && !is_lost_) read_table(deadline);
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
    const auto again = std::find_if(again_.begin(), again_.end(),
                                    [id](const auto& one) { return one->first_id == id; });
    if (again != again_.end()) {
        const std::unique_ptr<AgainCall> call = take(**again);
        id = call->id;
        if (find(id) == nullptr) return true;  // it was put off
    }
    Record* const record = find(id);
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
    if (put_off_ != 0) earliest_ = base::Clock::time_point::min();  // some may be due
    table_ = std::move(table);
    resolve_all();
}

/// For those that are put off. `timed_out`: something of that may be over.
Status ClientCore::connect_anew(const base::Deadline& deadline) {
    try {
        const Status status = reconnect(deadline);
        if (status == Status::cancelled) return status;
        if (status == Status::ok || status == Status::timed_out) return Status::timed_out;
    } catch (const base::Error& error) {
        if (error.code() == base::ErrorCode::cancelled) return Status::cancelled;
        // Nobody listened for so long, and that is no answer.
        if (deadline.expired()) return Status::timed_out;
    }
    return note_vain_attempt() != 0 ? Status::ok : Status::timed_out;
}

std::size_t ClientCore::note_vain_attempt() {
    const std::uint32_t attempts = ++vain_attempts_;
    retry_at_ = base::Clock::now() + pause_before({.made = attempts});
    std::size_t ended = 0;
    // Whoever is told that a call is over may do anything to the others.
    while (true) {
        const auto found = std::find_if(again_.begin(), again_.end(), [&](const auto& one) {
            return one->is_put_off && one->vain_attempts != attempts;
        });
        if (found == again_.end()) return ended;
        AgainCall& call = **found;
        call.vain_attempts = attempts;
        if (again_at(Code::not_sent, call.attempt, call.deadline).has_value()) continue;
        const std::unique_ptr<AgainCall> over = take(call);
        over->end(over->code);
        ++ended;
    }
}

void ClientCore::go_away() noexcept {
    stats_away_ = messages_.stats();
    owner_ = nullptr;
    is_away_ = true;
}

bool ClientCore::connect_away(const base::Deadline& deadline) noexcept {
    try {
        return ask_anew(table_away_.emplace(), deadline) == Status::ok;
    } catch (const std::exception&) {
        return false;
    }
}

void ClientCore::come_back(bool is_connected) {
    adopt();
    is_away_ = false;
    for (const std::uint64_t id : std::exchange(taken_back_, {})) (void)messages_.cancel(id);
    std::optional<std::vector<ProcedureReport>> table = std::exchange(table_away_, {});
    if (is_connected) take_table_anew(std::move(*table));
}

Status ClientCore::close(const base::Deadline& deadline) {
    check_thread();
    const Status status = messages_.close(deadline);
    is_closed_ = true;
    is_lost_ = false;
    end_all(Code::closed);
    return status;
}

ClientStats ClientCore::stats() const noexcept {
    ClientStats stats = counts_;
    stats.messages = is_away_ ? stats_away_ : messages_.stats();
    return stats;
}

std::string ClientCore::failure() const { return is_away_ ? "" : messages_.failure(); }

std::string ClientCore::explain() const {
    if (is_away_) return "rpc client: its connection has ended, and is being made anew";
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
    for (const Used& used : used_) {
        text += fmt::format("\n  {} is procedure {}", used.signature.name, numbers_[used.place]);
    }
    return text;
}

}  // namespace detail

// --- Client

Client::Client(std::unique_ptr<detail::ClientCore> core) noexcept : core_{std::move(core)} {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Client Client::connect_to(const connect::Address& address, ClientOptions options,
                          const base::Deadline& deadline, std::size_t response_bytes) {
    Choice chosen;
    detail::Path path = detail::connect_path(address, options, response_bytes, deadline, chosen);
    Client client{std::make_unique<detail::ClientCore>(std::move(path), std::move(options),
                                                       std::move(chosen))};
    client.core_->read_table(deadline);
    return client;
}

Code Client::ended(message::Outcome outcome, bool is_sent) noexcept {
    if (is_sent || outcome == message::Outcome::too_large ||
        outcome == message::Outcome::cancelled) {
        return code_of(outcome);
    }
    return outcome == message::Outcome::timed_out ? Code::late : Code::not_sent;
}

Status Client::poll() { return core_->poll(); }
Status Client::wait(const base::Deadline& deadline) { return core_->wait(deadline); }
bool Client::cancel(std::uint64_t id) { return core_->cancel(id); }
std::size_t Client::outstanding() const noexcept { return core_->outstanding(); }
Status Client::reconnect(const base::Deadline& deadline) { return core_->reconnect(deadline); }
Status Client::close(const base::Deadline& deadline) { return core_->close(deadline); }
void Client::adopt() noexcept { core_->adopt(); }

int Client::descriptor() {
    core_->check_thread();
    return core_->messages().descriptor();
}

std::vector<ProcedureReport> Client::procedures(const base::Deadline& deadline) {
    core_->check_thread();
    return core_->ask(true, deadline);
}

ClientStats Client::stats() const noexcept { return core_->stats(); }
std::string Client::explain() const { return core_->explain(); }
std::string Client::failure() const { return core_->failure(); }

}  // namespace millrace::rpc
