// Answers to several requests that came in one message of a client go in one message, too.
#include <algorithm>
#include <cstddef>

#include "millrace/base/clock.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

std::byte* Server::State::place_in_next_batch(Peer& peer, std::uint64_t id, std::size_t size) {
    send_answers();
    if (size > longest_entry) return nullptr;
    std::span<std::byte> room;
    const Status status = peer.line->claim_batch(batch_bytes(size), room);
    if (status != Status::ok) return nullptr;
    answers.open(room, id,
                 peer.resumes ? std::nullopt
                              : std::optional<std::size_t>{
                                    std::min<std::uint64_t>(peer.max_answer, longest_short)});
    return answers.place_for(size);
}

void Server::State::commit_answers() noexcept {
    if (!answers.is_open()) return;
    if (answers.is_empty()) return answers.drop();
    const std::uint64_t first = answers.first();
    const std::size_t size = answers.close({.id = first,
                                            .kind = SessionKind::answer_batch,
                                            .limit_us = answered->line->core().say_position()});
    // That the connection has ended is found by the next look.
    (void)answered->line->commit_batch(size);
}

void Server::State::send_answers() {
    commit_answers();
    sent(*answered);
}

}  // namespace millrace::message
