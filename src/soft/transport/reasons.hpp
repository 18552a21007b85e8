// Why a request failed, in mode `strict`: more than a completion's status can say. Made by
// executors, carried to the request's owner through the fault line, told by queue pairs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace millrace::soft {

enum class ReasonKind : std::uint32_t {
    none,
    no_key,         ///< nothing is registered under the key
    ended_key,      ///< something was
    other_domain,   ///< amount: nothing
    window_key,     ///< a window's key where a region's is needed
    before,         ///< amount: bytes before the beginning
    beyond,         ///< amount: bytes beyond the end
    region_access,  ///< amount: the ibv_access_flags that are missing
    queue_pair_access,
    cannot_map,
    unmapped,
    message_too_long,   ///< amount: bytes beyond what a message may have
    receive_too_short,  ///< amount: bytes beyond the receive's room
    unaligned,          ///< amount: the address of an atomic
    not_eight,          ///< amount: the bytes of an atomic's result
    no_window,          ///< what a SEND invalidates is no window of the connection
    malformed,
    no_receive,         ///< none was posted there within all retries
    no_answer,          ///< nobody received there within all retries
    senders_address,    ///< leads nowhere
    receivers_address,  ///< likewise: acknowledgements do not come back
    other_psn,          ///< key: the sender's, amount: the receiver's
    other_mtu,          ///< likewise, in bytes
    count
};

/// Of two words, so that it fits a line of a block. `key`: 0, or the key it is about.
struct Reason {
    ReasonKind kind = ReasonKind::none;
    std::uint32_t key = 0;
    std::uint64_t amount = 0;

    [[nodiscard]] constexpr std::uint64_t word() const noexcept {
        return std::uint64_t{key} << 32 | static_cast<std::uint32_t>(kind);
    }
    /// Of what another process has written: any number becomes some reason.
    [[nodiscard]] static constexpr Reason of(std::uint64_t word, std::uint64_t amount) noexcept {
        const auto kind = static_cast<std::uint32_t>(word);
        if (kind >= static_cast<std::uint32_t>(ReasonKind::count)) return {};
        return {static_cast<ReasonKind>(kind), static_cast<std::uint32_t>(word >> 32), amount};
    }
};

/// "key 0x1203 was ended by ibv_dereg_mr …". Throws std::bad_alloc.
[[nodiscard]] std::string text_of(const Reason& reason);

using NamedFlag = std::pair<std::uint64_t, std::string_view>;
/// "ONE | OTHER | 0x40", where the last has no name.
[[nodiscard]] std::string text_of_flags(std::uint64_t flags, std::span<const NamedFlag> names);

/// "IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ"
[[nodiscard]] std::string text_of_access(std::uint64_t flags);

/// The completion's status, as ibv_wc_status_str has it for those that the soft device gives.
[[nodiscard]] std::string_view text_of_status(int status) noexcept;

}  // namespace millrace::soft
