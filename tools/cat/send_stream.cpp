// The sending side of `millrace cat`: reads right into the memory that the device sends from.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cat/interruption.hpp"
#include "cat/protocol.hpp"
#include "cat/rate_line.hpp"
#include "cat/sides.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools {

namespace {

/// Thrown where a signal ended the wait.
struct Interrupted {};

class Sender {
  public:
    Sender(message::Channel& channel, int input, bool progress)
        : channel_{channel}, input_{input}, rate_{progress} {
        struct stat facts {};
        regular_ = fstat(input, &facts) == 0 && S_ISREG(facts.st_mode);
    }

    Note run() {
        bool more = true;
        while (more) {
            hear_complaint();
            more = send_chunk(wait_for_input());
            rate_.update(total_);
        }
        const Note end{.kind = NoteKind::end, .total = total_, .checksum = checksum_.value()};
        // The empty message that ends the data was the empty read.
        patiently([&](const base::Deadline& slice) { return channel_.send(end.bytes(), slice); });
        const Note answer = hear_answer();
        if (answer.total != end.total || answer.checksum != end.checksum) {
            throw base::Error{base::ErrorCode::protocol, "send the stream",
                              channel_.link().peer_name(), "what it received is not what was sent",
                              "report this as a defect, with the device's name"};
        }
        rate_.finish(total_);
        return end;
    }

    [[nodiscard]] bool data_ended() const noexcept { return data_ended_; }

  private:
    /// Waits until something can be read. Returns how much to ask for.
    std::size_t wait_for_input() {
        if (regular_) return cat_chunk_bytes;
        while (true) {
            pollfd waiting[2] = {{input_, POLLIN, 0}, {channel_.link().socket(), POLLIN, 0}};
            const int ready = poll(waiting, 2, static_cast<int>(look_interval.count()));
            check_signal();
            if (ready < 0 && errno != EINTR) {
                base::throw_errno(errno, "wait for input", "standard input");
            }
            if (ready > 0 && waiting[0].revents != 0) break;
            hear_complaint();
            if (channel_.link().peer_now() != connect::PeerState::alive) {
                hear_complaint();
                throw_ended(channel_,
                            channel_.link().peer_now() == connect::PeerState::closed
                                ? base::Status::closed
                                : base::Status::peer_lost,
                            "send the stream");
            }
        }
        // As much as is there: the room of a message travels whole, used or not.
        int available = 0;
        if (ioctl(input_, FIONREAD, &available) != 0) return 4096;
        return std::clamp<std::size_t>(static_cast<std::size_t>(std::max(available, 0)), 1,
                                       cat_chunk_bytes);
    }

    /// False: that was the end of the input, and an empty message says so.
    bool send_chunk(std::size_t size) {
        std::size_t count = 0;
        patiently([&](const base::Deadline& slice) {
            return channel_.send(
                size,
                [&](std::span<std::byte> room) {
                    count = read_into(room);
                    return count;
                },
                slice);
        });
        total_ += count;
        data_ended_ = count == 0;
        return count != 0;
    }

    std::size_t read_into(std::span<std::byte> room) {
        while (true) {
            const ssize_t count = ::read(input_, room.data(), room.size());
            if (count >= 0) {
                checksum_.add(room.first(static_cast<std::size_t>(count)));
                return static_cast<std::size_t>(count);
            }
            if (errno == EAGAIN || errno == EINTR) {
                // Another reader of the same input was faster.
                check_signal();
                pollfd waiting{input_, POLLIN, 0};
                (void)poll(&waiting, 1, static_cast<int>(look_interval.count()));
                if (channel_.link().peer_now() != connect::PeerState::alive) {
                    throw base::Error{base::ErrorCode::peer_lost, "send the stream",
                                      channel_.link().peer_name(), "it is gone",
                                      "look at what its process reported"};
                }
                continue;
            }
            base::throw_errno(errno, "read", "standard input");
        }
    }

    /// Repeats `attempt` in slices, between which it looks for signals and complaints.
    template <class Attempt>
    void patiently(Attempt&& attempt) {
        while (true) {
            const base::Status status =
                attempt(base::Deadline::after(look_interval).cancelled_by(interruption()));
            if (status == base::Status::ok) return;
            check_signal();
            hear_complaint();
            if (status != base::Status::timed_out) {
                throw_ended(channel_, status, "send the stream");
            }
        }
    }

    static void check_signal() {
        if (interruption().requested()) throw Interrupted{};
    }

    /// The receiver only speaks before the end if something is wrong.
    void hear_complaint() {
        std::optional<Note> note;
        const base::Status status = channel_.try_receive(
            [&](std::span<const std::byte> bytes) { note = Note::parse(bytes); });
        if (status == base::Status::ok) {
            throw_failed(note.value_or(Note{.kind = NoteKind::failed}), channel_.link().peer_name(),
                         "send the stream");
        }
    }

    Note hear_answer() {
        std::optional<Note> note;
        patiently_receive(note);
        if (!note || note->kind != NoteKind::end) {
            throw_failed(note.value_or(Note{.kind = NoteKind::failed}), channel_.link().peer_name(),
                         "send the stream");
        }
        return *note;
    }

    void patiently_receive(std::optional<Note>& note) {
        while (true) {
            const base::Status status = channel_.receive(
                [&](std::span<const std::byte> bytes) { note = Note::parse(bytes); },
                base::Deadline::after(look_interval).cancelled_by(interruption()));
            if (status == base::Status::ok) return;
            check_signal();
            if (status != base::Status::timed_out) {
                throw_ended(channel_, status, "wait until the other end has written everything");
            }
        }
    }

    message::Channel& channel_;
    int input_;
    StreamChecksum checksum_;
    RateLine rate_;
    std::uint64_t total_ = 0;
    bool regular_ = false;
    bool data_ended_ = false;
};

}  // namespace

Transferred send_stream(message::Channel& channel, int input, bool show_checksum, bool progress) {
    const bool show = exchange_hellos(channel, show_checksum);
    Sender sender{channel, input, progress};
    try {
        const Note end = sender.run();
        (void)channel.close(base::Deadline::after(note_patience));
        return {end.total, end.checksum, show};
    } catch (const Interrupted&) {
        say_and_close(channel, {.kind = NoteKind::interrupted}, !sender.data_ended());
        throw base::Error{base::ErrorCode::cancelled,
                          "send the stream",
                          channel.link().peer_name(),
                          "interrupted by a signal",
                          {}};
    } catch (...) {
        say_and_close(channel, {.kind = NoteKind::failed}, !sender.data_ended());
        throw;
    }
}

}  // namespace millrace::tools
