// The receiving side of `millrace cat`: writes right out of the memory that the peer wrote to.
#include <cerrno>
#include <cstdint>
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
    Receiver(message::Channel& channel, int output, bool progress)
        : channel_{channel}, output_{output}, rate_{progress} {}

    Note run() {
        std::optional<Note> end;
        while (!end) {
            const base::Status status = channel_.receive(
                [&](std::span<const std::byte> bytes) {
                    if (data_ended_) {
                        end = Note::parse(bytes).value_or(Note{.kind = NoteKind::failed});
                    } else if (bytes.empty()) {
                        data_ended_ = true;
                    } else {
                        write_out(bytes);
                    }
                },
                base::Deadline::after(look_interval).cancelled_by(interruption()));
            check_signal();
            if (status != base::Status::ok && status != base::Status::timed_out) {
                throw_ended(channel_, status, "receive the stream");
            }
            rate_.update(total_);
        }
        if (end->kind != NoteKind::end) {
            throw_failed(*end, channel_.link().peer_name(), "receive the stream");
        }
        // Some file systems tell only now that the disk is full.
        if (::close(output_) != 0 && errno != EINTR) throw OutputFailed{errno};
        const Note mine{.kind = NoteKind::end, .total = total_, .checksum = checksum_.value()};
        if (mine.total != end->total || mine.checksum != end->checksum) {
            throw base::Error{base::ErrorCode::protocol, "receive the stream",
                              channel_.link().peer_name(), "what was received is not what it sent",
                              "report this as a defect, with the device's name"};
        }
        rate_.finish(total_);
        return mine;
    }

  private:
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
            const connect::PeerState peer = channel_.link().peer_now();
            if (peer != connect::PeerState::alive) {
                throw_ended(channel_,
                            peer == connect::PeerState::closed ? base::Status::closed
                                                               : base::Status::peer_lost,
                            "receive the stream");
            }
        }
    }

    static void check_signal() {
        if (interruption().requested()) throw Interrupted{};
    }

    message::Channel& channel_;
    int output_;
    StreamChecksum checksum_;
    RateLine rate_;
    std::uint64_t total_ = 0;
    bool data_ended_ = false;
};

}  // namespace

Transferred receive_stream(message::Channel& channel, int output, bool show_checksum,
                           bool progress) {
    const bool show = exchange_hellos(channel, show_checksum);
    Receiver receiver{channel, output, progress};
    try {
        const Note end = receiver.run();
        const auto deadline = base::Deadline::after(note_patience);
        const base::Status status = channel.send(end.bytes(), deadline);
        if (status != base::Status::ok) {
            throw_ended(channel, status, "tell the sender that everything is written");
        }
        // The sender may have heard it and be gone already.
        (void)channel.close(deadline);
        return {end.total, end.checksum, show};
    } catch (const Interrupted&) {
        say_and_close(channel, {.kind = NoteKind::interrupted}, false);
        throw base::Error{base::ErrorCode::cancelled,
                          "receive the stream",
                          channel.link().peer_name(),
                          "interrupted by a signal",
                          {}};
    } catch (const OutputFailed& failure) {
        say_and_close(
            channel, {.kind = NoteKind::failed, .error = static_cast<std::uint32_t>(failure.error)},
            false);
        base::throw_errno(failure.error, "write", "standard output",
                          "look at what reads the output, or at the room on the disk");
    } catch (...) {
        say_and_close(channel, {.kind = NoteKind::failed}, false);
        throw;
    }
}

}  // namespace millrace::tools
