// Client: the public calls.
#include "millrace/message/client.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "client/client_access.hpp"
#include "client/client_state.hpp"
#include "millrace/message/detail/in_place.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;

// --- Client

Client::Client(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Status Client::submit(std::span<const std::byte> request, std::uint64_t& id,
                      const RequestOptions& options) {
    // Each of the two keeps its registers for itself.
    State& client = *state_;
    if (client.lays_batches()) [[unlikely]]
        return client.submit_quickly(request, id, options);
    return client.submit(request, id, options);
}

Status Client::claim(std::size_t size, std::span<std::byte>& room) {
    return state_->claim(size, room);
}

Status Client::claim(std::size_t size, std::span<std::byte>& room, const Deadline& deadline) {
    return state_->wait_for(Status::full, deadline, [&] {
        const Status status = claim(size, room);
        // Answers make room in a window, and those that came before the end are to be handed out.
        if (status == Status::full || status == Status::closed || status == Status::peer_lost) {
            while (state_->keep_one()) {
            }
            if (state_->ended != Status::ok) return state_->ended;
        }
        return status;
    });
}

Status Client::commit(std::size_t size, std::uint64_t& id, const RequestOptions& options) {
    return state_->commit(size, id, options);
}

Status Client::look(Answer& answer) {
    State& client = *state_;
    if (client.is_in_batch()) [[unlikely]]
        return client.look_quickly(answer);
    return client.look_and_count(answer);
}

Status Client::look(Answer& answer, const Deadline& deadline) {
    Status status = look(answer);
    if (status != Status::empty && !state_->may_resume(status)) return status;
    if (outstanding() == 0) {
        // There is no answer to wait for, but the session goes on.
        if (status != Status::empty) {
            return state_->resumes(deadline, status) ? Status::empty : status;
        }
        if (!state_->wants_room()) return status;
        return state_->wait_for(Status::full, deadline, [&] {
            const Status found = look(answer);
            if (found != Status::empty) return found;
            const Status room = state_->look_for_room();
            return room == Status::ok ? Status::empty : room;
        });
    }
    return state_->wait_for(Status::empty, deadline, [&] { return look(answer); });
}

Status Client::look_for(std::uint64_t id, Answer& answer, const Deadline& deadline) {
    State& client = *state_;
    // It may have come while another one was awaited.
    const Status status =
        client.has_kept(id, answer)
            ? Status::ok
            : client.wait_for(Status::empty, deadline, [&] { return client.look_for(id, answer); });
    client.note_found(id, status, answer);
    return status;
}

void Client::pass() {
    if (!state_->is_handed_out()) [[unlikely]]
        state_->refuse_to_pass();
    state_->pass();
}

void Client::pass_unless_gone() noexcept {
    if (state_->is_handed_out()) state_->pass();
}

void Client::State::refuse_to_pass() const {
    detail::refuse_nested_use("go on after an answer", server.to_string());
}

void Client::prefetch() noexcept { state_->prefetch(); }

Status Client::claim_several(std::size_t count, std::size_t size, const RequestOptions& options,
                             detail::RequestRoom& room) {
    return state_->claim_several(count, size, options, room);
}

void Client::commit_several(std::byte* end, std::size_t count, std::size_t bytes) noexcept {
    state_->commit_several(end, count, bytes);
}

void Client::send_several() noexcept { state_->send_several(); }

Status Client::look_for_several(Answer& answer, detail::AnswerRun& run) {
    return state_->look_for_several(answer, run);
}

void Client::pass_several(const detail::AnswerRun& run) noexcept { state_->pass_several(run); }

void Client::begin_batch() noexcept { state_->begin_batches(); }

void Client::end_batch() noexcept { state_->end_batches(); }

bool Client::cancel(std::uint64_t id) { return state_->cancel(id); }

std::size_t Client::outstanding() const noexcept { return state_->outstanding(); }

std::uint32_t Client::window() const noexcept { return state_->calls.most(); }

Status Client::reconnect(const Deadline& deadline) { return state_->connect_again(deadline); }

Status Client::close(const Deadline& deadline) { return state_->close(deadline); }

Status Client::State::close(const Deadline& deadline) {
    const base::SoleCall call{use, "close a message client", server.to_string()};
    if (is_copy) return ended;
    if (closed_as.has_value()) return *closed_as;
    take_no_more();
    Status status = ended;
    if (line.has_value() && status != Status::peer_lost) {
        status = line->close(deadline, options.wait);
        if (status == Status::timed_out || status == Status::cancelled) return status;
        why_failed = line->failure();
    }
    end_reading();
    line.reset();
    closed_as = status;
    ended = status == Status::peer_lost ? status : Status::closed;
    return status;
}

connect::Link& Client::link() {
    if (!state_->line.has_value()) {
        throw base::Error{base::ErrorCode::closed, "look at the connection of a message client",
                          state_->server.to_string(), "it is not connected", "reconnect() first"};
    }
    return state_->line->link();
}

int Client::descriptor() {
    (void)link();
    return state_->line->descriptor(state_->options.wait);
}

ClientStats Client::stats() const noexcept {
    ClientStats stats = state_->counts;
    stats.requests = state_->calls.next() - 1;
    return stats;
}

std::string Client::failure() const {
    const State& client = *state_;
    if (client.is_copy) return std::string{base::copy_in_child};
    if (!client.why_failed.empty() || !client.line.has_value()) return client.why_failed;
    return client.line->failure();
}

// --- for the rest of this folder

RingLane& detail::ClientAccess::ring(Client& client) noexcept { return *client.state_->ring(); }

}  // namespace millrace::message
