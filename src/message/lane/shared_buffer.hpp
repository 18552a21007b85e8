// A shared buffer: one piece of the server's memory into which all of its clients write their
// packets (packet.hpp), wherever they like, and an array of words that say where. Memory and
// arithmetic only; the client's half posts or stores what is decided here (shared_sender.hpp), the
// server's half hands what it finds to packet streams (packet_lane.hpp).
//
//   offset 0         64                              …                    words_end
//   | resting        | row of place 0 | row of place 1 | …                | buffer, in lines of 64
//
//   row      `slots` words, and one more:  | data 0 | … | data slots-1 | bare |
//   word     | checksum (32 bits) | line + 1 (32 bits) |      0: empty
//
// Who writes what
//
//   resting  the server: odd while it sleeps, another number each time. Clients read it.
//   row      the client whose place it is writes words; the server exchanges them with 0.
//   buffer   every client, at a random line. The server only reads.
//
// A client lays packet n anywhere in the buffer, and after it, by one write of 8 bytes, where it
// lies and its checksum into word `n mod slots` of its row. (A packet without data has the last
// word.) The stream sends n only when n - slots was consumed, whose word was taken for that; so a
// word is written over only by the same packet, sent again, or, of those without data, by a newer
// one. The work has one word for each client, and hence one outstanding message.
//
// Nothing keeps two clients from writing to the same lines. So what the server takes from a word
// counts for nothing until it has been copied into memory of the server's own, and the copy has the
// word's checksum, begun with the connection's token: who sent it, and which connection of whom.
// (After a check in place another client might still write.) What has not is damaged, and as if
// lost: the server asks its client for the oldest packets that are missing (PacketStream::
// note_damaged), which go to other lines then. So a collision costs a round trip; both of two that
// met may be damaged, and chance ends that.
//
// What a client leaves that dies while it writes: lines of the buffer that hold a part of a packet,
// whose word was not written, so nobody looks there. It may have damaged what lay there, which its
// owner sends again. A word of a former client of the place (its queue pair is gone, but a process
// that was stopped may store late) leads to a packet whose checksum began with another token: a
// damaged one. No lock, no line, no word belongs to anybody who could fail to give it back.
//
// Clients that are not trusted could damage every packet of all others, for ever, and read them;
// and, as a packet bears its token, send in their name: a shared buffer is for trusted clients
// only. What anybody writes never makes the server read outside of the buffer, or into other memory
// than its copies. What two honest clients make of one packet passes for whole with a chance of
// 2^-32.
//
// Source: work 001, section 4.2.1 (randomised writes, offsets, checksums over sender and data).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lane/checksum.hpp"
#include "lane/packet.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/language.hpp"
#include "millrace/message/detail/mailbox_scan.hpp"

namespace millrace::message {

inline constexpr std::size_t shared_line_bytes = 64;
inline constexpr std::uint32_t most_shared_slots = most_packets;

[[nodiscard]] constexpr std::size_t in_shared_lines(std::size_t bytes) noexcept {
    return (bytes + shared_line_bytes - 1) / shared_line_bytes;
}

/// How large all of it is.
struct SharedShape {
    std::uint32_t places = 0;
    std::uint32_t slots = 0;  ///< a power of two up to most_shared_slots
    std::uint32_t lines = 0;  ///< of the buffer

    [[nodiscard]] constexpr std::size_t row() const noexcept { return slots + std::size_t{1}; }
    [[nodiscard]] static constexpr std::size_t words_at() noexcept { return shared_line_bytes; }
    [[nodiscard]] constexpr std::size_t row_at(std::uint32_t place) const noexcept {
        return words_at() + place * row() * sizeof(std::uint64_t);
    }
    [[nodiscard]] constexpr std::size_t buffer_at() const noexcept {
        return in_shared_lines(row_at(places)) * shared_line_bytes;
    }
    [[nodiscard]] constexpr std::size_t bytes() const noexcept {
        return buffer_at() + std::size_t{lines} * shared_line_bytes;
    }
};

[[nodiscard]] constexpr std::uint64_t shared_word(std::uint32_t line,
                                                  std::uint32_t checksum) noexcept {
    return std::uint64_t{checksum} << 32 | (line + std::uint64_t{1});
}

/// What the checksum of every packet of a connection begins with.
[[nodiscard]] inline std::uint32_t shared_seed(std::uint64_t token) noexcept {
    return crc32c(std::as_bytes(std::span{&token, 1}));
}

/// From or to memory that others may write to meanwhile: word by word. `bytes` is rounded up to
/// words at both ends.
inline void copy_in_words(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        auto& source =
            const_cast<std::uint64_t&>(*reinterpret_cast<const std::uint64_t*>(from + at));
        auto& target = *reinterpret_cast<std::uint64_t*>(to + at);
        std::atomic_ref<std::uint64_t>{target}.store(
            std::atomic_ref<std::uint64_t>{source}.load(std::memory_order_relaxed),
            std::memory_order_relaxed);
    }
}

/// The server's half. One thread.
class SharedReader {
  public:
    /// `memory`: of shape.bytes(), zeroed, aligned to a line.
    SharedReader(std::span<std::byte> memory, const SharedShape& shape,
                 ScanKernel kernel = best_scan_kernel()) noexcept
        : memory_{memory}, shape_{shape}, scan_{scan_by(kernel)} {}

    [[nodiscard]] const SharedShape& shape() const noexcept { return shape_; }

    /// Before a client is told that the place is its own.
    void clear(std::uint32_t place) noexcept {
        for (std::size_t slot = 0; slot < shape_.row(); ++slot) {
            word(place * shape_.row() + slot).store(0, std::memory_order_relaxed);
        }
    }

    /// From here on clients that write ring; what they wrote before is found by a look after it.
    void rest() noexcept {
        resting_ += resting_ % 2 == 0 ? 1 : 2;
        flag().store(resting_, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    void wake() noexcept {
        if (resting_ % 2 == 0) return;
        ++resting_;
        flag().store(resting_, std::memory_order_relaxed);
    }

    /// Calls `take(place, word)` for each word of the places below `places` that was written since
    /// the last look.
    template <class Take>
    void look(std::uint32_t places, Take&& take) noexcept {
        const std::size_t end = places * shape_.row() * sizeof(std::uint64_t);
        const std::byte* const words = memory_.data() + shape_.words_at();
        for (std::size_t at = 0; (at = scan_(words, at, end)) != end;) {
            const std::size_t index = at / sizeof(std::uint64_t);
            const std::uint64_t taken = word(index).exchange(0, std::memory_order_acquire);
            base::heard_from_peers();
            if (taken != 0) take(static_cast<std::uint32_t>(index / shape_.row()), taken);
            at = (index + 1) * sizeof(std::uint64_t);
        }
    }

    /// Copies what a word of a client leads to into memory of the server's own, aligned to 8, which
    /// has room for the longest packet. False: it is damaged. `seed`: as shared_seed() of the token
    /// of packets to this end of that connection.
    [[nodiscard]] bool read(std::uint64_t word, std::uint32_t seed, std::span<std::byte> into,
                            std::span<const std::byte>& packet) const noexcept {
        const std::uint64_t line = (word & 0xffff'ffff) - 1;  // of 0: none that there is
        if (line >= shape_.lines || into.size() < packet_head_bytes) return false;
        const std::byte* const from =
            memory_.data() + shape_.buffer_at() + line * shared_line_bytes;
        copy_in_words(into.data(), from, packet_head_bytes);
        PacketHead head;
        std::memcpy(&head, into.data(), sizeof head);
        const std::size_t bytes = packet_head_bytes + head.length;
        const std::size_t left = (shape_.lines - line) * shared_line_bytes;
        const std::size_t room = into.size() / sizeof(std::uint64_t) * sizeof(std::uint64_t);
        if (bytes > left || bytes > room) return false;
        copy_in_words(into.data() + packet_head_bytes, from + packet_head_bytes, head.length);
        packet = into.first(bytes);
        return crc32c(packet, seed) == static_cast<std::uint32_t>(word >> 32);
    }

  private:
    [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::size_t index) noexcept {
        return std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(
            memory_.data() + shape_.words_at() + index * sizeof(std::uint64_t))};
    }
    [[nodiscard]] std::atomic_ref<std::uint64_t> flag() noexcept {
        return std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory_.data())};
    }

    std::span<std::byte> memory_;
    SharedShape shape_;
    Scan scan_;
    std::uint64_t resting_ = 0;
};

/// The client's half: where its next packet goes. One thread.
class SharedPlaces {
  public:
    SharedPlaces() noexcept = default;
    /// `seed`: as in SharedReader::read; `chance`: any number.
    SharedPlaces(const SharedShape& shape, std::uint32_t seed, std::uint64_t chance) noexcept
        : shape_{shape}, seed_{seed}, chance_{chance | 1} {}

    struct Place {
        std::size_t word = 0;  ///< in its row
        std::uint32_t line = 0;
        std::uint64_t content = 0;  ///< of the word
    };
    /// Of a packet as PacketStream gives it, no longer than half of the buffer. None of this
    /// client's own packets that may be needed still lies there, unless the buffer is so small.
    [[nodiscard]] Place next(std::span<const std::byte> packet) noexcept {
        PacketHead head;
        std::memcpy(&head, packet.data(), sizeof head);
        Place place;
        place.word =
            (head.flags & packet_data) != 0 ? head.sequence & (shape_.slots - 1) : shape_.slots;
        const auto count = static_cast<std::uint32_t>(in_shared_lines(packet.size()));
        const std::uint32_t lines = shape_.lines - count + 1;
        place.line = random_below(lines);
        for (std::uint32_t tried = 0; tried < lines && !is_free(place, count); ++tried) {
            place.line = place.line + 1 == lines ? 0 : place.line + 1;
        }
        used_[place.word] = {place.line, count};
        place.content = shared_word(place.line, crc32c(packet, seed_));
        return place;
    }

  private:
    struct Used {
        std::uint32_t line = 0;
        std::uint32_t count = 0;
    };
    [[nodiscard]] bool is_free(const Place& place, std::uint32_t count) const noexcept {
        for (std::size_t other = 0; other < shape_.row(); ++other) {
            const Used& its = used_[other];
            if (other != place.word && place.line < its.line + its.count &&
                its.line < place.line + count) {
                return false;
            }
        }
        return true;
    }
    [[nodiscard]] std::uint32_t random_below(std::uint32_t count) noexcept {
        chance_ ^= chance_ << 13;
        chance_ ^= chance_ >> 7;
        chance_ ^= chance_ << 17;
        return static_cast<std::uint32_t>((chance_ >> 32) * count >> 32);
    }

    SharedShape shape_{};
    std::uint32_t seed_ = 0;
    std::uint64_t chance_ = 1;
    std::array<Used, most_shared_slots + 1> used_{};
};

}  // namespace millrace::message
