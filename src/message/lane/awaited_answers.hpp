// The requests of a client that have no answer yet. Used by a lane over packets (packet_lane.hpp),
// whose timer runs while there are some.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "millrace/message/session.hpp"

namespace millrace::message {

/// One thread. Nothing throws once it is made.
class AwaitedAnswers {
  public:
    [[nodiscard]] bool any() const noexcept { return count_ != 0; }
    void sent(const SessionHead& head) noexcept {
        SessionHeader header;
        if (!parse(head, header)) return;
        if (header.kind == SessionKind::hello && !std::exchange(hello_, true)) ++count_;
        if (header.kind == SessionKind::request) set(header.id, true);
    }
    void received(std::span<const std::byte> message) noexcept {
        SessionHead head;
        SessionHeader header;
        if (message.size() < sizeof head) return;
        std::memcpy(&head, message.data(), sizeof head);
        if (!parse(head, header)) return;
        if (header.kind == SessionKind::answer) return set(header.id, false);
        if (std::exchange(hello_, false)) --count_;
    }

  private:
    void set(std::uint64_t id, bool is_awaited) noexcept {
        std::vector<bool>::reference place = requests_[id % largest_window];
        if (place == is_awaited) return;
        place = is_awaited;
        is_awaited ? ++count_ : --count_;
    }

    bool hello_ = false;
    std::uint32_t count_ = 0;
    std::vector<bool> requests_ = std::vector<bool>(largest_window);
};

}  // namespace millrace::message
