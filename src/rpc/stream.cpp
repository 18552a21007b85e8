// Both ends of streams.
#include "millrace/rpc/stream.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/wait.hpp"
#include "millrace/rpc/client.hpp"
#include "stream_state.hpp"

namespace millrace::rpc::detail {

using base::Status;

namespace {

std::string_view text_of(std::span<const std::byte> bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

// --- the server's end

std::array<std::byte, 8> StreamState::end_word() const noexcept {
    return std::bit_cast<std::array<std::byte, 8>>(word_of(PartKind::end, written_));
}

bool StreamState::pull(message::Request& request) {
    const std::lock_guard guard{mutex_};
    if (!parts_.empty()) {
        (void)request.answer(parts_.front());
        drop_front();
        return false;
    }
    if (!has_ended_) {
        const std::uint64_t id = request.id();
        asking_.push_back({id, request.defer()});
        return false;
    }
    if (error_.has_value()) {
        ErrorRoom room;
        (void)request.fail(text_of(rpc::write(*error_, room)));
    } else {
        (void)request.answer(end_word());
    }
    return true;
}

bool StreamState::give_up(std::uint64_t id) {
    const std::lock_guard guard{mutex_};
    for (const Asking& one : asking_) {
        if (one.id != id) continue;
        give_up_locked();
        return true;
    }
    return false;
}

void StreamState::give_up() {
    const std::lock_guard guard{mutex_};
    give_up_locked();
}

void StreamState::give_up_locked() {
    if (pending_ != nullptr && is_wanted_) {
        pending_->procedure->unwanted.fetch_add(1, std::memory_order_relaxed);
    }
    is_wanted_ = false;
    asking_.clear();
    parts_.clear();
    parts_bytes_ = 0;
    (void)part_.set(0);
}

Status StreamState::write(std::vector<std::byte>& part) {
    const std::lock_guard guard{mutex_};
    if (has_ended_ || !is_wanted_) return Status::closed;
    const std::uint64_t word = word_of(PartKind::part, written_);
    std::memcpy(part.data(), &word, sizeof word);
    if (asking_.empty()) {
        if (!keep(part)) return Status::full;
        ++written_;
        return Status::ok;
    }
    const Status status = asking_.front().reply.answer(part);
    // A part that is lost on its way is missed by the reader.
    ++written_;
    asking_.pop_front();
    return status;
}

bool StreamState::keep(std::vector<std::byte>& part) {
    if (parts_.size() >= most_) return false;
    const std::size_t bytes = parts_bytes_ + part.size();
    parts_.push_back(std::move(part));
    // Each stream may have one, so that all of them go on.
    if (parts_.size() == 1) {
        part_.set_anyhow(bytes);
    } else if (!part_.set(bytes)) {
        part = std::move(parts_.back());
        parts_.pop_back();
        return false;
    }
    parts_bytes_ = bytes;
    return true;
}

void StreamState::drop_front() noexcept {
    parts_bytes_ -= parts_.front().size();
    parts_.pop_front();
    part_.set_anyhow(parts_bytes_);
}

Status StreamState::end(std::optional<Error> error) {
    const std::lock_guard guard{mutex_};
    if (has_ended_) return Status::closed;
    has_ended_ = true;
    settle(!error.has_value());
    error_ = std::move(error);
    if (!asking_.empty() && error_.has_value()) {
        ErrorRoom room;
        (void)asking_.front().reply.fail(text_of(rpc::write(*error_, room)));
        asking_.pop_front();
    }
    // Whoever asked ahead hears that there is no more.
    for (Asking& one : asking_) (void)one.reply.answer(end_word());
    asking_.clear();
    return is_wanted_ ? Status::ok : Status::closed;
}

void StreamState::settle(bool answered) {
    detail::settle(std::exchange(pending_, nullptr), answered);
}

SinkCore& SinkCore::operator=(SinkCore&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
}

SinkCore::~SinkCore() {
    if (state_ != nullptr) (void)state_->end(Error{.text = "the stream was let go of"});
}

Status SinkCore::write(std::vector<std::byte> part) {
    return state_ != nullptr ? state_->write(part) : Status::closed;
}

Status SinkCore::write(std::vector<std::byte> part, const base::Deadline& deadline) {
    if (state_ == nullptr) return Status::closed;
    Status status = Status::full;
    base::NapParker nap;
    const Status waited = base::wait_until(
        [&] {
            status = state_->write(part);
            return status != Status::full;
        },
        deadline, base::WaitPolicy{}, nap);
    return waited == Status::ok ? status : waited;
}

Status SinkCore::finish() {
    const auto state = std::exchange(state_, nullptr);
    return state != nullptr ? state->end(std::nullopt) : Status::closed;
}

Status SinkCore::fail(const Error& error) {
    const auto state = std::exchange(state_, nullptr);
    return state != nullptr ? state->end(error) : Status::closed;
}

bool SinkCore::is_wanted() const noexcept { return state_ != nullptr && state_->is_wanted(); }

// --- the client's end

/// A request for a part. Its record holds a pointer to it: it stays where it is.
struct ReaderCore::Pull {
    State* reader = nullptr;
    std::uint64_t id = 0;
    bool is_over = false;
    bool is_last = false;  ///< the server has ended the stream by this
    Code code = Code::ok;
    Error error{};
    std::vector<std::byte> payload{};

    static Pull& of(Record& record) noexcept {
        return **std::launder(reinterpret_cast<Pull**>(record.storage.data()));
    }
    void put(Record& record) noexcept {
        new (record.storage.data()) Pull* {this};
        record.type = &type;
    }
    static void leave(Record& record) noexcept {
        of(record).is_over = true;
        record.type = nullptr;
    }
    static void finish(Record& record);
    static const Record::Type type;
};

const Record::Type ReaderCore::Pull::type{
    .take =
        [](Record& record, const message::Answer& answer) {
            Pull& pull = of(record);
            if (answer.outcome == message::Outcome::ok) {
                pull.payload.assign(answer.payload.begin(), answer.payload.end());
            } else if (answer.outcome == message::Outcome::failed) {
                pull.error = parse_error(answer.payload);
                pull.code = pull.error.code;
                pull.is_last = true;
            } else {
                pull.code = code_of(answer.outcome);
            }
        },
    .end = [](Record& record, Code code) noexcept { of(record).code = code; },
    .finish = finish,
    .drop = leave,
};

struct ReaderCore::State {
    ClientCore& client;
    base::Deadline deadline;
    std::uint32_t ahead;
    std::uint64_t number = next_number();  ///< of the stream
    std::uint64_t taken = 0;               ///< parts so far
    bool is_over = false;
    bool is_at_server = false;      ///< as far as this end knows: it was opened, and has not ended
    PartWaiter* waiter = nullptr;   ///< for the first of pulls
    std::deque<Pull> pulls{};       ///< in the order of their parts
    std::vector<std::byte> part{};  ///< the one that next() gave

    [[nodiscard]] static std::uint64_t next_number() noexcept {
        static std::atomic<std::uint64_t> count{0};
        return ++count;
    }
    /// Asks for a part. `until`: how long it waits for room; null: not at all.
    Status send(std::uint64_t& id, const base::Deadline* until) {
        if (client.is_away()) return Status::full;
        const std::array<std::uint64_t, 2> asks{number, 0};
        const auto fill = [&](std::span<std::byte> room) {
            std::memcpy(room.data(), asks.data(), sizeof asks);
        };
        const message::RequestOptions said{.procedure = pull_number};
        return until != nullptr ? client.messages().submit(sizeof asks, fill, id, *until, said)
                                : client.messages().submit(sizeof asks, fill, id, said);
    }
    /// Asks for parts ahead, as many as there is room for; for the first one it waits as send().
    Status ask(const base::Deadline* until = nullptr) {
        while (pulls.size() < ahead && client.has_room()) {
            std::uint64_t id = 0;
            const Status status = send(id, pulls.empty() ? until : nullptr);
            if (status == Status::full) return Status::ok;
            if (status != Status::ok) return pulls.empty() ? status : Status::ok;
            wait_for(id);
        }
        return Status::ok;
    }
    void wait_for(std::uint64_t id) {
        Pull& pull = pulls.emplace_back();
        pull.reader = this;
        pull.id = id;
        Record& record = client.free_record(id);
        pull.put(record);
        client.submitted(record, id, deadline);
    }
    /// Whoever writes it is to hear that, also where nothing is asked for.
    void give_up() noexcept {
        if (std::exchange(is_at_server, false)) client.give_up_stream(number);
    }
};

ReaderCore::ReaderCore(ClientCore& client, const base::Deadline& deadline, std::uint32_t ahead)
    : state_{new State{.client = client, .deadline = deadline, .ahead = ahead == 0 ? 1 : ahead}} {}

ReaderCore::~ReaderCore() {
    State& state = *state_;
    state.give_up();
    for (Pull& pull : state.pulls) {
        if (!pull.is_over) (void)state.client.take_back(pull.id);
    }
}

void ReaderCore::opened(std::uint64_t id) {
    state_->is_at_server = true;
    state_->wait_for(id);
    (void)state_->ask();
}

std::uint64_t ReaderCore::number() const noexcept { return state_->number; }

void ReaderCore::fail(Code code) {
    state_->is_over = true;
    state_->give_up();
    error_ = {.code = code, .text = std::string{name_of(code)}};
}

void ReaderCore::Pull::finish(Record& record) {
    State& state = *of(record).reader;
    const bool is_next = &of(record) == &state.pulls.front();
    leave(record);
    // Whoever is told may take the part, and be gone with the reader.
    if (is_next && state.waiter != nullptr) std::exchange(state.waiter, nullptr)->came();
}

bool ReaderCore::lacks_room() const noexcept { return !state_->is_over && state_->pulls.empty(); }
void ReaderCore::tell(PartWaiter* waiter) noexcept { state_->waiter = waiter; }

Status ReaderCore::next(std::span<const std::byte>& part, const base::Deadline& deadline) {
    State& state = *state_;
    if (state.is_over) return error_.code == Code::ok ? Status::closed : Status::peer_lost;
    while (state.pulls.empty() || !state.pulls.front().is_over) {
        // Other calls may have taken the place of the next one: then they have to end first.
        const bool is_asked = !state.pulls.empty();
        const base::Deadline until =
            is_asked ? deadline : deadline.no_later_than(state.deadline.point());
        Status status = is_asked ? Status::ok : state.ask(&until);
        Code why = Code::not_sent;
        if (status == Status::ok) {
            status = state.client.wait(until);
            // A session that could not be resumed.
            why = status == Status::closed ? Code::closed : Code::peer_lost;
        }
        if (status == Status::cancelled) return status;
        if (status == Status::timed_out) {
            if (deadline.expired()) return status;
            if (!state.pulls.empty() || !state.deadline.expired()) continue;
            why = Code::late;
        } else if (status == Status::ok || (!state.pulls.empty() && state.pulls.front().is_over)) {
            continue;
        }
        fail(why);
        return Status::peer_lost;
    }
    return take(part);
}

Status ReaderCore::take(std::span<const std::byte>& part) {
    State& state = *state_;
    if (state.is_over) return error_.code == Code::ok ? Status::closed : Status::peer_lost;
    if (state.pulls.empty() && state.ask() != Status::ok) {
        fail(Code::not_sent);
        return Status::peer_lost;
    }
    if (state.pulls.empty() || !state.pulls.front().is_over) return Status::empty;
    Pull pull = std::move(state.pulls.front());
    state.pulls.pop_front();
    if (pull.code != Code::ok) {
        if (pull.is_last) state.is_at_server = false;
        fail(pull.code);
        if (!pull.error.text.empty()) error_ = std::move(pull.error);
        return Status::peer_lost;
    }
    std::uint64_t word = 0;
    if (pull.payload.size() >= sizeof word) {
        std::memcpy(&word, pull.payload.data(), sizeof word);
    }
    const auto kind = static_cast<PartKind>(word & 0xff);
    const std::uint64_t number = word >> 8;
    const bool is_end = kind == PartKind::end;
    if (is_end || kind == PartKind::no_stream) state.is_at_server = false;
    if (is_end && number == state.taken) {
        state.is_over = true;
        return Status::closed;
    }
    if (kind != PartKind::part || number != state.taken) {
        // Its end, had there been one, would have come before this.
        if (kind == PartKind::no_stream) {
            fail(Code::session_lost);
            error_.text = fmt::format(
                "read a stream: the server does not know it any more, behind {} parts: the session "
                "that it was opened in was lost; open it again",
                state.taken);
        } else if (is_end || kind == PartKind::part) {
            fail(Code::session_lost);
            error_.text = fmt::format(
                "read a stream: parts of it were lost: {} were read, and {}; open it again",
                state.taken,
                is_end ? fmt::format("{} were written", number)
                       : fmt::format("the next one to come is number {}, counted from 0", number));
        } else {
            fail(Code::bad_answer);
        }
        return Status::peer_lost;
    }
    ++state.taken;
    state.part = std::move(pull.payload);
    part = std::span{state.part}.subspan(sizeof word);
    if (state.ask() != Status::ok && state.pulls.empty()) {
        // The part is good; whoever asks for the next one hears of it.
        fail(Code::not_sent);
    }
    return Status::ok;
}

}  // namespace millrace::rpc::detail
