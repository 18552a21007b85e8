// Posting the receives of messages.
#include "incoming.hpp"

#include "shared_receives.hpp"

namespace millrace::message {

bool Incoming::post(std::uint32_t slot) noexcept {
    if (shared_ != nullptr) return shared_->post(slot);
    return slots_.post(*queue_pair_, slot) == 0 && posted_.push(slot);
}

}  // namespace millrace::message
