// What the two ends of `millrace cat` say to each other on a byte stream.
//
//   sender                                       receiver
//   Note hello {flags}                  ->  <-   Note hello {flags}
//   Block {length} and as many bytes,
//   any number of times                 ->
//   Block {0}
//   Note end {total, checksum}          ->
//                                           <-   Note end {total, checksum}: all is written
//
// Both sides compute the checksum of every stream and compare.
//
// Either side may say Note failed {error} (an errno value, or 0) or Note interrupted instead: the
// sender behind a Block of no bytes, the receiver at any time. Then it closes. A receiver that has
// a sender already answers the hello of any other with Note busy.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/base/deadline.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::tools {

enum class NoteKind : std::uint32_t { hello = 1, end = 2, failed = 3, interrupted = 4, busy = 5 };

struct Note {
    static constexpr std::uint32_t magic_value = 0x3243524d;  // "MRC2"
    static constexpr std::uint32_t has_checksum = 1;          ///< of every hello
    static constexpr std::uint32_t shows_checksum = 2;        ///< the user wants to see it

    std::uint32_t magic = magic_value;
    NoteKind kind = NoteKind::hello;
    std::uint32_t flags = 0;
    std::uint32_t error = 0;
    std::uint64_t total = 0;
    std::uint64_t checksum = 0;

    [[nodiscard]] static std::optional<Note> parse(std::span<const std::byte> bytes) noexcept {
        Note note;
        if (bytes.size() != sizeof note) return std::nullopt;
        std::memcpy(&note, bytes.data(), sizeof note);
        if (note.magic != magic_value) return std::nullopt;
        return note;
    }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return std::as_bytes(std::span{this, 1});
    }
};
static_assert(sizeof(Note) == 32, "the wire format has no gaps");

/// What stands before bytes of the stream, and how many they are.
struct Block {
    std::uint64_t length = 0;
};

/// XXH3 (64 bits) of a stream.
class StreamChecksum {
  public:
    StreamChecksum() : state_{XXH3_createState()} {
        if (state_ == nullptr) throw std::bad_alloc{};
        XXH3_64bits_reset(state_);
    }
    StreamChecksum(const StreamChecksum&) = delete;
    StreamChecksum& operator=(const StreamChecksum&) = delete;
    ~StreamChecksum() { XXH3_freeState(state_); }

    void add(std::span<const std::byte> bytes) noexcept {
        XXH3_64bits_update(state_, bytes.data(), bytes.size());
    }
    [[nodiscard]] std::uint64_t value() const noexcept { return XXH3_64bits_digest(state_); }

  private:
    XXH3_state_t* state_;
};

/// How long the two ends wait for each other's notes.
inline constexpr std::chrono::seconds note_patience{5};
/// How often a waiting end looks for signals and at the peer.
inline constexpr std::chrono::milliseconds look_interval{250};
/// Of the ring, where bytes wait that nobody receives yet.
inline constexpr std::size_t cat_ring_bytes = std::size_t{1} << 20;
/// The most that a Block has.
inline constexpr std::size_t cat_chunk_bytes = std::size_t{256} << 10;
/// Of an end's memory that sends and receives take turns in.
inline constexpr std::size_t cat_places = 4;
inline constexpr std::size_t cat_place_bytes = cat_chunk_bytes + 4096;

/// The other end, and the memory that is lent to it: which goes behind the connection.
struct Peer {
    Peer(stream::Socket connected, std::shared_ptr<connect::Endpoint> endpoint)
        : memory{cat_places * cat_place_bytes, std::move(endpoint)}, socket{std::move(connected)} {}

    stream::Buffer memory;
    std::array<std::byte, sizeof(Note)> heard{};
    stream::Socket socket;

    /// The id of the receive of a note; those of places are their numbers.
    static constexpr std::uint64_t note_id = ~std::uint64_t{0};
    /// From now on the next bytes are a note.
    [[nodiscard]] base::Status expect_note() {
        return socket.receive(heard, note_id, stream::ReceiveFlags::wait_all);
    }
};

/// Sends our hello and hears the peer's. True: one of the two wants the checksum to be shown.
/// Throws Error.
[[nodiscard]] bool exchange_hellos(Peer& peer, bool show_checksum);

/// The Error for a stream that ended, by `status`, before it should.
[[noreturn]] void throw_ended(stream::Socket& socket, base::Status status,
                              const std::string& attempted);
/// The Error for the peer's note that it failed or was interrupted.
[[noreturn]] void throw_failed(const Note& note, const std::string& peer,
                               const std::string& attempted);

/// Says how the stream ended, if the peer still listens, and closes. Never throws.
void say_and_close(stream::Socket& socket, const Note& note, bool behind_data) noexcept;

}  // namespace millrace::tools
