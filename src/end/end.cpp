// The rare paths of an end, see the header.
#include "millrace/end/end.hpp"

#include <array>
#include <span>

namespace millrace::end {

using base::Status;
using connect::PeerState;

Status End::peer_now() noexcept {
    return link_.peer_now() == PeerState::alive ? Status::ok : how_it_ended();
}

Status End::how_it_ended() noexcept {
    return link_.peer_now() == PeerState::closed ? Status::closed : Status::peer_lost;
}

std::string End::failure(const SendWindow* second) const {
    if (window_.is_copy()) return window_.failure();
    if (!why_.empty()) return why_;
    if (ended_ != Status::peer_lost) return {};
    return cause_of_loss(link_, second != nullptr && !window_.broken() ? *second : window_);
}

int End::descriptor(std::chrono::nanoseconds spin) {
    if (readiness_ == nullptr) {
        const std::array<int, 2> news = link_.news();
        readiness_ = std::make_unique<connect::Readiness>(
            source_ ? std::span<const int>{&*source_, 1} : std::span<const int>{news}, spin);
    }
    return readiness_->descriptor();
}

void End::watch(int source) {
    source_ = source;
    if (readiness_ != nullptr) readiness_->turn_to(link_.news(), std::span<const int>{&source, 1});
}

}  // namespace millrace::end
