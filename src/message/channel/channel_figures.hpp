// What one end of a channel counts by itself, and its statistics page. Used by channel_core.hpp;
// what its parts count (credit, sleeps, events) is added by Channel::Core::stats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "millrace/base/statistics.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::message {

/// One thread.
class ChannelFigures {
  public:
    static constexpr std::size_t figures = 14;  ///< of the page

    ChannelFigures(const std::string& title, std::span<const base::Figure> names)
        : page_{title, names} {}

    void sent(std::size_t bytes, bool is_last) noexcept {
        ++counts_.pieces_sent;
        counts_.bytes_sent += bytes;
        if (!is_last) ++partial_sent_;
    }
    void received(std::size_t bytes) noexcept {
        ++counts_.pieces_received;
        counts_.bytes_received += bytes;
    }
    /// What was received is not the last piece of its message.
    void received_part() noexcept { ++partial_received_; }
    void found_full() noexcept { ++counts_.full; }
    [[nodiscard]] std::uint64_t& frame_writes() noexcept { return counts_.frame_writes; }
    [[nodiscard]] std::uint64_t& other_writes() noexcept { return counts_.other_writes; }

    /// Nothing was sent, or wanted to be, and nothing received.
    [[nodiscard]] bool is_unused() const noexcept { return pieces() + counts_.full == 0; }
    [[nodiscard]] bool has_changed() const noexcept { return shown_pieces_ != pieces(); }
    /// So much that the page is to be brought up to date.
    [[nodiscard]] bool is_due() const noexcept { return pieces() - shown_pieces_ >= 4096; }
    [[nodiscard]] ChannelStats stats() const noexcept {
        ChannelStats stats = counts_;
        stats.messages_sent = counts_.pieces_sent - partial_sent_;
        stats.messages_received = counts_.pieces_received - partial_received_;
        return stats;
    }
    void show(const ChannelStats& now) noexcept {
        shown_pieces_ = pieces();
        const std::uint64_t values[] = {
            now.messages_sent,  now.bytes_sent,     now.messages_received,
            now.bytes_received, now.pieces_sent,    now.pieces_received,
            now.frame_writes,   now.other_writes,   now.credit_writes,
            now.credit_reads,   now.full,           now.sleeps,
            now.events_sent,    now.events_received};
        static_assert(std::size(values) == figures);
        page_.set(values);
    }

  private:
    [[nodiscard]] std::uint64_t pieces() const noexcept {
        return counts_.pieces_sent + counts_.pieces_received;
    }

    ChannelStats counts_;
    std::uint64_t partial_received_ = 0;  ///< and not the last of their message
    std::uint64_t partial_sent_ = 0;
    std::uint64_t shown_pieces_ = 0;  ///< sent and received, at the last show()
    base::StatisticsPage page_;
};

}  // namespace millrace::message
