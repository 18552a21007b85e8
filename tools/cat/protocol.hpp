// What the two ends of `millrace cat` say to each other on a message channel.
//
//   sender                                       receiver
//   Note hello {flags}                  ->  <-   Note hello {flags}
//   data, data, … (never empty)         ->
//   empty message
//   Note end {total, checksum}          ->
//                                           <-   Note end {total, checksum}: all is written
//
// Both sides compute the checksum of every stream and compare.
//
// Either side may say Note failed {error} (an errno value, or 0) or Note interrupted instead: the
// sender behind an empty message, the receiver at any time. Then it closes. A receiver that has a
// sender already answers the hello of any other with Note busy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/message/channel.hpp"

namespace millrace::tools {

enum class NoteKind : std::uint32_t { hello = 1, end = 2, failed = 3, interrupted = 4, busy = 5 };

struct Note {
    static constexpr std::uint32_t magic_value = 0x3143524d;  // "MRC1"
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
/// Bytes per message of data.
inline constexpr std::size_t cat_ring_bytes = std::size_t{1} << 20;
inline constexpr std::size_t cat_chunk_bytes = std::size_t{128} << 10;

/// Sends our hello and hears the peer's. True: one of the two wants the checksum to be shown.
/// Throws Error.
[[nodiscard]] bool exchange_hellos(message::Channel& channel, bool show_checksum);

/// The Error for a channel that ended, by `status`, before the stream did.
[[noreturn]] void throw_ended(message::Channel& channel, base::Status status,
                              const std::string& attempted);
/// The Error for the peer's note that it failed or was interrupted.
[[noreturn]] void throw_failed(const Note& note, const std::string& peer,
                               const std::string& attempted);

/// Says how the stream ended, if the peer still listens, and closes. Never throws.
void say_and_close(message::Channel& channel, const Note& note, bool behind_data) noexcept;

}  // namespace millrace::tools
