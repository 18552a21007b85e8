// SharedReceives, see the header.
#include "channel/shared_receives.hpp"

#include <fmt/format.h>

#include "channel/channel_core.hpp"
#include "each_completion.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

SharedReceives::SharedReceives(connect::Endpoint& endpoint, std::uint32_t slots,
                               std::size_t slot_bytes)
    : channel_{endpoint.context().create_completion_channel()},
      // As many entries as the device may grant receives.
      completions_{
          endpoint.context().create_completion_queue(static_cast<int>(2 * slots + 1), &channel_)},
      memory_{
          endpoint.protection_domain().allocate(slots * slot_bytes, verbs::Access::local_write)},
      queue_{endpoint.protection_domain().create_shared_receive_queue({.max_requests = slots})},
      slots_{.begin = memory_.data(),
             .slot_bytes = slot_bytes,
             .count = slots,
             .key = memory_.slice(0, slot_bytes).lkey} {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
        if (post(slot)) continue;
        throw base::Error{base::ErrorCode::verbs, "post the receives of a message server",
                          fmt::format("receive {} of {}", slot, slots),
                          "the shared receive queue refused it", "ask for fewer (shared_receives)"};
    }
}

void SharedReceives::add(Channel::Core& core) {
    told_.reserve(ends_.size() + 1);
    given_.reserve(ends_.size() + 1);
    ends_.emplace(core.link().queue_pair().number(), &core);
}

void SharedReceives::remove(Channel::Core& core) noexcept {
    ends_.erase(core.link().queue_pair().number());
    std::erase(told_, &core);
}

void SharedReceives::poll() noexcept {
    (void)each_completion(completions_, [this](const verbs::Completion& completion) {
        const auto end = ends_.find(completion.raw.qp_num);
        if (end == ends_.end()) {
            // Of one who has left.
            (void)post(static_cast<std::uint32_t>(completion.id()));
            return;
        }
        Channel::Core& core = *end->second;
        core.take(completion);
        if (core.is_told || core.server_place == Channel::Core::no_place) return;
        core.is_told = true;
        told_.push_back(&core);
    });
}

const std::vector<std::uint32_t>& SharedReceives::told() noexcept {
    given_.clear();
    for (Channel::Core* const core : told_) {
        core->is_told = false;
        given_.push_back(core->server_place);
    }
    told_.clear();
    return given_;
}

}  // namespace millrace::message
