// The receiving side of `millrace cat`: writes right out of the memory that its receives filled.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "cat/interruption.hpp"
#include "cat/protocol.hpp"
#include "cat/rate_line.hpp"
#include "cat/sides.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools {

namespace {

struct Interrupted {};

/// Standard output failed: both sides must hear of it.
struct OutputFailed {
    int error;
};

class Receiver {
  public:
    Receiver(Peer& peer, int output, bool progress)
        : peer_{peer}, socket_{peer.socket}, output_{output}, rate_{progress} {}

    Note run() {
        for (std::uint64_t place = 0; place < cat_places; ++place) receive_into(place);
        while (!end_) {
            stream::Completion done;
            base::Status status = socket_.wait(
                done, base::Deadline::after(look_interval).cancelled_by(interruption()));
            check_signal();
            if (status == base::Status::timed_out) continue;
            if (status == base::Status::ok) status = done.status;
            if (status != base::Status::ok) throw_ended(socket_, status, "receive the stream");
            take(peer_.memory.bytes().subspan(done.id * cat_place_bytes, done.bytes));
            if (!end_) receive_into(done.id);
            rate_.update(total_);
        }
        const std::optional<Note>& end = end_;
        if (end->kind != NoteKind::end) {
            throw_failed(*end, socket_.peer_name(), "receive the stream");
        }
        // Some file systems tell only now that the disk is full.
        if (::close(output_) != 0 && errno != EINTR) throw OutputFailed{errno};
        const Note mine{.kind = NoteKind::end, .total = total_, .checksum = checksum_.value()};
        if (mine.total != end->total || mine.checksum != end->checksum) {
            throw base::Error{base::ErrorCode::protocol, "receive the stream", socket_.peer_name(),
                              "what was received is not what it sent",
                              "report this as a defect, with the device's name"};
        }
        rate_.finish(total_);
        return mine;
    }

  private:
    void receive_into(std::uint64_t place) {
        const base::Status status =
            socket_.receive(peer_.memory.slice(place * cat_place_bytes, cat_place_bytes), place);
        if (status != base::Status::ok) throw_ended(socket_, status, "receive the stream");
    }

    /// What came next: bytes of a Block, or of what stands before it, or of the last note.
    void take(std::span<const std::byte> bytes) {
        while (!bytes.empty() && !end_) {
            if (missing_ != 0) {
                const auto some = bytes.first(std::min<std::uint64_t>(missing_, bytes.size()));
                write_out(some);
                missing_ -= some.size();
                bytes = bytes.subspan(some.size());
                continue;
            }
            const std::size_t wanted = data_ended_ ? sizeof(Note) : sizeof(Block);
            const std::size_t some = std::min(wanted - words_, bytes.size());
            std::memcpy(words_read_.data() + words_, bytes.data(), some);
            words_ += some;
            bytes = bytes.subspan(some);
            if (words_ < wanted) return;
            words_ = 0;
            if (data_ended_) {
                end_ = Note::parse(words_read_).value_or(Note{.kind = NoteKind::failed});
            } else {
                std::memcpy(&missing_, words_read_.data(), sizeof missing_);
                data_ended_ = missing_ == 0;
            }
        }
    }

    void write_out(std::span<const std::byte> bytes) {
        checksum_.add(bytes);
        while (!bytes.empty()) {
            const ssize_t count = ::write(output_, bytes.data(), bytes.size());
            if (count >= 0) {
                bytes = bytes.subspan(static_cast<std::size_t>(count));
                total_ += static_cast<std::uint64_t>(count);
                continue;
            }
            if (errno != EINTR && errno != EAGAIN) throw OutputFailed{errno};
            if (errno == EAGAIN) {
                pollfd waiting{output_, POLLOUT, 0};
                (void)poll(&waiting, 1, static_cast<int>(look_interval.count()));
            }
            check_signal();
            // Whoever reads our output is slow; the sender's end must not go unnoticed meanwhile.
            const connect::PeerState peer = socket_.link().peer_now();
            if (peer != connect::PeerState::alive) {
                throw_ended(socket_,
                            peer == connect::PeerState::closed ? base::Status::closed
                                                               : base::Status::peer_lost,
                            "receive the stream");
            }
        }
    }

    static void check_signal() {
        if (interruption().requested()) throw Interrupted{};
    }

    Peer& peer_;
    stream::Socket& socket_;
    int output_;
    StreamChecksum checksum_;
    RateLine rate_;
    std::uint64_t total_ = 0;
    std::uint64_t missing_ = 0;                         ///< of the Block
    std::array<std::byte, sizeof(Note)> words_read_{};  ///< of what is no data
    std::size_t words_ = 0;
    bool data_ended_ = false;
    std::optional<Note> end_;
};

}  // namespace

Transferred receive_stream(Peer& peer, int output, bool show_checksum, bool progress) {
    const bool show = exchange_hellos(peer, show_checksum);
    stream::Socket& socket = peer.socket;
    Receiver receiver{peer, output, progress};
    try {
        const Note end = receiver.run();
        const auto deadline = base::Deadline::after(note_patience);
        const base::Status status = socket.write_all(end.bytes(), deadline);
        if (status != base::Status::ok) {
            throw_ended(socket, status, "tell the sender that everything is written");
        }
        // The sender may have heard it and be gone already.
        (void)socket.close(deadline);
        return {end.total, end.checksum, show};
    } catch (const Interrupted&) {
        say_and_close(socket, {.kind = NoteKind::interrupted}, false);
        throw base::Error{base::ErrorCode::cancelled,
                          "receive the stream",
                          socket.peer_name(),
                          "interrupted by a signal",
                          {}};
    } catch (const OutputFailed& failure) {
        say_and_close(
            socket, {.kind = NoteKind::failed, .error = static_cast<std::uint32_t>(failure.error)},
            false);
        base::throw_errno(failure.error, "write", "standard output",
                          "look at what reads the output, or at the room on the disk");
    } catch (...) {
        say_and_close(socket, {.kind = NoteKind::failed}, false);
        throw;
    }
}

}  // namespace millrace::tools
