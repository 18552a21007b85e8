// Goodbyes, see the header.
#include "millrace/end/closing.hpp"

#include <chrono>
#include <cstring>
#include <span>

#include "millrace/base/clock.hpp"

namespace millrace::end {

namespace {
/// How long the goodbye of a peer is waited for whose queue pair is gone.
constexpr std::chrono::seconds goodbye_patience{2};
}  // namespace

void Closing::say_goodbye(std::uint64_t position) noexcept {
    link_->say_goodbye(std::as_bytes(std::span<const std::uint64_t>{&position, 1}));
}

std::optional<std::uint64_t> Closing::peer_position() const noexcept {
    std::uint64_t position = 0;
    const std::span<const std::byte> words = link_->last_words();
    if (words.size() != sizeof position) return std::nullopt;
    std::memcpy(&position, words.data(), sizeof position);
    return position;
}

bool Closing::awaits_goodbye() noexcept {
    if (is_liar_ || link_->peer_now() != connect::PeerState::alive) return false;
    if (!goodbye_due_) goodbye_due_ = base::Deadline::after(goodbye_patience);
    return !goodbye_due_->expired();
}

void Closing::hear_goodbye(const base::Deadline& deadline, const base::WaitPolicy& policy) {
    base::NapParker nap;  // that moment is over by the clock, which wakes nobody
    (void)base::wait_until([this] { return !awaits_goodbye(); }, deadline, policy, nap);
    goodbye_due_ = base::Deadline::now();
}

}  // namespace millrace::end
