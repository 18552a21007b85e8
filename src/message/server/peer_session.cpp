#include "server/peer_session.hpp"

#include <bit>
#include <utility>

#include "memory.hpp"

namespace millrace::message {

namespace {
/// So that what is held of all is not counted for each answer.
[[nodiscard]] std::size_t in_steps(std::size_t kept_bytes) noexcept {
    constexpr std::size_t step = std::size_t{16} << 10;
    return (kept_bytes + step - 1) / step * step;
}
}  // namespace

void PeerSession::begin(const Hello& hello, std::uint32_t window, std::shared_ptr<HeldBytes> held) {
    const std::size_t room = std::bit_ceil(std::size_t{window});
    std::vector<std::uint64_t> deferred(room);
    std::vector<Kept> kept(hello.resumes ? room : 0);
    name_ = SessionName::random();
    resumes_ = hello.resumes;
    window_ = window;
    mask_ = room - 1;
    taken_ = hello.next_id - 1;
    acknowledged_ = hello.next_id;
    deferred_ = std::move(deferred);
    kept_ = std::move(kept);
    kept_part_ = HeldPart{std::move(held)};
}

void PeerSession::end() noexcept {
    name_ = {};
    resumes_ = false;
    give_back(deferred_);
    pending_ = 0;
    give_back(kept_);
    kept_bytes_ = 0;
    kept_part_.set_anyhow(0);
    give_back(unread_);
}

bool PeerSession::defer(std::uint64_t id) noexcept {
    const bool is_more = std::exchange(deferred_[id & mask_], id) == 0;
    if (is_more) ++pending_;
    return is_more;
}

bool PeerSession::take_deferred(std::uint64_t id) noexcept {
    if (!is_deferred(id)) return false;
    deferred_[id & mask_] = 0;
    --pending_;
    return true;
}

void PeerSession::forget(Kept& kept) noexcept {
    kept_bytes_ -= kept.payload.size();
    (void)kept_part_.set(in_steps(kept_bytes_));
    // All of them together keep no more memory than may be kept of answers.
    clear_keeping(kept.payload, most_kept_ / kept_.size());
    kept.id = 0;
}

bool PeerSession::keep(std::uint64_t id, Outcome outcome, std::span<const std::byte> payload,
                       std::size_t most) {
    most_kept_ = most;
    Kept& kept = kept_[id & mask_];
    forget(kept);
    if (payload.size() > most - kept_bytes_) return true;
    kept.payload.assign(payload.begin(), payload.end());
    if (!kept_part_.set(in_steps(kept_bytes_ + payload.size()))) {
        give_back(kept.payload);
        return false;
    }
    kept.id = id;
    kept.outcome = outcome;
    kept_bytes_ += payload.size();
    return true;
}

void PeerSession::forget_below(std::uint64_t lowest) noexcept {
    for (; acknowledged_ < lowest; ++acknowledged_) {
        Kept& kept = kept_[acknowledged_ & mask_];
        if (kept.id == acknowledged_) forget(kept);
    }
    // What an honest client was to have READ of it, and sends again if it was not, is not below.
    if (!unread_.empty()) [[unlikely]] {
        std::erase_if(unread_, [&](std::uint64_t id) { return id < lowest; });
    }
}

}  // namespace millrace::message
