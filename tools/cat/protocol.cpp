// The words of `millrace cat`, see the header.
#include "cat/protocol.hpp"

#include <fmt/format.h>

#include "cat/interruption.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools {

using base::ErrorCode;

bool exchange_hellos(Peer& peer, bool show_checksum) {
    const auto deadline = base::Deadline::after(note_patience).cancelled_by(interruption());
    Note mine{.flags = Note::has_checksum};
    if (show_checksum) mine.flags |= Note::shows_checksum;
    stream::Socket& socket = peer.socket;
    base::Status status = peer.expect_note();
    if (status == base::Status::ok) status = socket.write_all(mine.bytes(), deadline);
    std::optional<Note> theirs;
    if (status == base::Status::ok) {
        stream::Completion done;
        status = socket.wait(done, deadline);
        if (status == base::Status::ok) status = done.status;
        if (status == base::Status::ok) theirs = Note::parse(peer.heard);
    }
    if (status != base::Status::ok) throw_ended(socket, status, "greet the other end");
    if (theirs && theirs->kind == NoteKind::interrupted) {
        throw_failed(*theirs, socket.peer_name(), "greet the other end");
    }
    if (theirs && theirs->kind == NoteKind::busy) {
        throw base::Error{ErrorCode::refused, "greet the other end", socket.peer_name(),
                          "it already receives from another sender, and takes only one",
                          "start a `millrace cat listen` on another address, or wait until that "
                          "sender has finished and the receiver is started again"};
    }
    if (!theirs || theirs->kind != NoteKind::hello || (theirs->flags & Note::has_checksum) == 0) {
        throw base::Error{ErrorCode::protocol, "greet the other end", socket.peer_name(),
                          "it does not speak as `millrace cat` does",
                          "use the same version of millrace on both sides"};
    }
    return ((mine.flags | theirs->flags) & Note::shows_checksum) != 0;
}

void throw_ended(stream::Socket& socket, base::Status status, const std::string& attempted) {
    const std::string& peer = socket.peer_name();
    switch (status) {
        case base::Status::cancelled:
            throw base::Error{ErrorCode::cancelled, attempted, peer, "interrupted by a signal", {}};
        case base::Status::timed_out:
            throw base::Error{ErrorCode::timed_out, attempted, peer, "it does not answer",
                              "look whether its process is stopped or overloaded"};
        case base::Status::closed:
            throw base::Error{ErrorCode::closed, attempted, peer,
                              "it ended the conversation before the end of the stream",
                              "look at what its process reported"};
        default:
            throw base::Error{ErrorCode::peer_lost, attempted, peer,
                              socket.failure().empty() ? "the connection broke" : socket.failure(),
                              "look at what its process reported, and start both again"};
    }
}

void throw_failed(const Note& note, const std::string& peer, const std::string& attempted) {
    if (note.kind == NoteKind::interrupted) {
        throw base::Error{ErrorCode::closed, attempted, peer, "it was interrupted by a signal",
                          "start both again"};
    }
    throw base::Error{
        ErrorCode::closed, attempted, peer,
        note.error != 0
            ? fmt::format("it failed: {}", base::describe_errno(static_cast<int>(note.error)))
            : std::string{"it failed"},
        "look at what its process reported"};
}

void say_and_close(stream::Socket& socket, const Note& note, bool behind_data) noexcept {
    try {
        const auto deadline = base::Deadline::after(std::chrono::milliseconds{500});
        const Block none;
        if (!behind_data ||
            socket.write_all(std::as_bytes(std::span{&none, 1}), deadline) == base::Status::ok) {
            (void)socket.write_all(note.bytes(), deadline);
        }
        (void)socket.close(deadline);
    } catch (...) {
        // The peer then sees that the process ended.
    }
}

}  // namespace millrace::tools
