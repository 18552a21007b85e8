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

namespace {

/// On the socket: the position, and the totals if there are some.
struct LastWords {
    std::uint64_t position = 0;
    Closing::Totals totals{};
};
static_assert(sizeof(LastWords) == 24);

}  // namespace

void Closing::say_goodbye(std::uint64_t position) noexcept {
    const LastWords words{position, totals_.value_or(Totals{})};
    const auto bytes = std::as_bytes(std::span{&words, 1});
    link_->say_goodbye(totals_.has_value() ? bytes : bytes.first(sizeof position));
}

std::optional<std::uint64_t> Closing::peer_position() const noexcept {
    std::uint64_t position = 0;
    const std::span<const std::byte> words = link_->last_words();
    if (words.size() != sizeof position && words.size() != sizeof(LastWords)) return std::nullopt;
    std::memcpy(&position, words.data(), sizeof position);
    return position;
}

std::optional<Closing::Totals> Closing::peer_totals() const noexcept {
    LastWords theirs;
    const std::span<const std::byte> words = link_->last_words();
    if (words.size() != sizeof theirs) return std::nullopt;
    std::memcpy(&theirs, words.data(), sizeof theirs);
    return theirs.totals;
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
