// The sending side of `millrace cat`: reads right into the memory that is sent from.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
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
    Sender(Peer& peer, int input, bool progress)
        : peer_{peer}, socket_{peer.socket}, input_{input}, rate_{progress} {
        struct stat facts {};
        regular_ = fstat(input, &facts) == 0 && S_ISREG(facts.st_mode);
    }

    Note run() {
        if (const base::Status status = peer_.expect_note(); status != base::Status::ok) {
            throw_ended(socket_, status, "send the stream");
        }
        bool more = true;
        while (more) {
            take_completions();
            more = send_block(wait_for_input());
            rate_.update(total_);
        }
        const Note end{.kind = NoteKind::end, .total = total_, .checksum = checksum_.value()};
        send_place({}, end.bytes());
        const Note answer = hear_answer();
        if (answer.total != end.total || answer.checksum != end.checksum) {
            throw base::Error{base::ErrorCode::protocol, "send the stream", socket_.peer_name(),
                              "what it received is not what was sent",
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
            // Blocks that the receiver has no room for yet go on meanwhile.
            take_completions();
            pollfd waiting[2] = {{input_, POLLIN, 0}, {socket_.descriptor(), POLLIN, 0}};
            const int ready = poll(waiting, 2, static_cast<int>(look_interval.count()));
            check_signal();
            if (ready < 0 && errno != EINTR) {
                base::throw_errno(errno, "wait for input", "standard input");
            }
            if (ready > 0 && waiting[0].revents != 0) break;
        }
        // As much as is there.
        int available = 0;
        if (ioctl(input_, FIONREAD, &available) != 0) return 4096;
        return std::clamp<std::size_t>(static_cast<std::size_t>(std::max(available, 0)), 1,
                                       cat_chunk_bytes);
    }

    /// False: that was the end of the input.
    bool send_block(std::size_t size) {
        const std::span<std::byte> place = wait_for_place();
        const std::size_t count = read_into(place.subspan(sizeof(Block), size));
        total_ += count;
        if (count != 0) send_place({count}, place.subspan(sizeof(Block), count));
        return count != 0;
    }

    /// Room that no send needs any more.
    std::span<std::byte> wait_for_place() {
        while (sent_ - sends_done_ == cat_places) wait_for_completion("send the stream");
        return peer_.memory.bytes().subspan(sent_ % cat_places * cat_place_bytes, cat_place_bytes);
    }

    /// `bytes` lie in their place already, or behind a Block of none there is room for them.
    void send_place(const Block& block, std::span<const std::byte> bytes) {
        const std::span<std::byte> place = wait_for_place();
        std::memcpy(place.data(), &block, sizeof block);
        if (block.length == 0) {
            std::memcpy(place.data() + sizeof block, bytes.data(), bytes.size());
            data_ended_ = true;
        }
        const base::Status status = socket_.send(
            peer_.memory.slice(static_cast<std::size_t>(place.data() - peer_.memory.data()),
                               sizeof block + bytes.size()),
            sent_++);
        if (status != base::Status::ok) end_by(status, "send the stream");
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
                if (socket_.link().peer_now() != connect::PeerState::alive) {
                    throw base::Error{base::ErrorCode::peer_lost, "send the stream",
                                      socket_.peer_name(), "it is gone",
                                      "look at what its process reported"};
                }
                continue;
            }
            base::throw_errno(errno, "read", "standard input");
        }
    }

    static void check_signal() {
        if (interruption().requested()) throw Interrupted{};
    }

    void take_completions() {
        stream::Completion done;
        while (socket_.poll(done) == base::Status::ok) take(done, "send the stream");
    }

    void wait_for_completion(const char* attempted) {
        stream::Completion done;
        const base::Status status =
            socket_.wait(done, base::Deadline::after(look_interval).cancelled_by(interruption()));
        check_signal();
        if (status == base::Status::ok) {
            take(done, attempted);
        } else if (status != base::Status::timed_out) {
            end_by(status, attempted);
        }
    }

    /// The receiver only speaks before the end if something is wrong.
    void take(const stream::Completion& done, const char* attempted) {
        if (done.kind == stream::Completion::Kind::receive) {
            if (done.status != base::Status::ok) throw_ended(socket_, done.status, attempted);
            answer_ = Note::parse(peer_.heard).value_or(Note{.kind = NoteKind::failed});
            if (!data_ended_ || answer_->kind != NoteKind::end) {
                throw_failed(*answer_, socket_.peer_name(), attempted);
            }
            return;
        }
        ++sends_done_;
        if (done.status != base::Status::ok) end_by(done.status, attempted);
    }

    /// Why it said so, it may have said before.
    [[noreturn]] void end_by(base::Status status, const char* attempted) {
        stream::Completion done;
        while (socket_.poll(done) == base::Status::ok) {
            if (done.kind == stream::Completion::Kind::receive) take(done, attempted);
        }
        throw_ended(socket_, status, attempted);
    }

    Note hear_answer() {
        while (!answer_) wait_for_completion("wait until the other end has written everything");
        return *answer_;
    }

    Peer& peer_;
    stream::Socket& socket_;
    int input_;
    StreamChecksum checksum_;
    RateLine rate_;
    std::uint64_t total_ = 0;
    bool regular_ = false;
    bool data_ended_ = false;
    std::uint64_t sent_ = 0;  ///< places
    std::uint64_t sends_done_ = 0;
    std::optional<Note> answer_;
};

}  // namespace

Transferred send_stream(Peer& peer, int input, bool show_checksum, bool progress) {
    const bool show = exchange_hellos(peer, show_checksum);
    stream::Socket& socket = peer.socket;
    Sender sender{peer, input, progress};
    try {
        const Note end = sender.run();
        (void)socket.close(base::Deadline::after(note_patience));
        return {end.total, end.checksum, show};
    } catch (const Interrupted&) {
        say_and_close(socket, {.kind = NoteKind::interrupted}, !sender.data_ended());
        throw base::Error{base::ErrorCode::cancelled,
                          "send the stream",
                          socket.peer_name(),
                          "interrupted by a signal",
                          {}};
    } catch (...) {
        say_and_close(socket, {.kind = NoteKind::failed}, !sender.data_ended());
        throw;
    }
}

}  // namespace millrace::tools
