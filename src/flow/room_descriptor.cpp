#include "millrace/flow/room_descriptor.hpp"

#include <algorithm>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::flow::detail {

int RoomDescriptor::get(int beside) {
    if (hub_ == nullptr) {
        hub_ = std::make_unique<connect::Hub>(
            connect::Hub::Options{.wait = base::WaitPolicy::blocking()});
        if (beside >= 0) (void)hub_->add(beside, [] {});
    }
    hub_->adopt();
    if (watched_.empty()) hub_->post([] {});
    return hub_->descriptor();
}

void RoomDescriptor::found_full(std::span<const int> descriptors) {
    hub_->adopt();
    std::erase_if(watched_, [&](const Watched& one) {
        if (std::ranges::count(descriptors, one.descriptor) != 0) return false;
        hub_->remove(one.id);
        return true;
    });
    for (const int descriptor : descriptors) {
        if (std::ranges::count(watched_, descriptor, &Watched::descriptor) != 0) continue;
        watched_.push_back({descriptor, hub_->add(descriptor, [] {})});
    }
    hub_->remove(std::exchange(alarm_, {}));
    (void)hub_->turn();  // what was posted, or was due
}

void RoomDescriptor::wake_at(base::Clock::time_point time) {
    hub_->adopt();
    hub_->remove(alarm_);
    alarm_ = hub_->at(time, [] {});
}

void RoomDescriptor::forget(int descriptor) {
    const auto at = std::ranges::find(watched_, descriptor, &Watched::descriptor);
    if (at == watched_.end()) return;
    hub_->adopt();
    hub_->remove(at->id);
    watched_.erase(at);
    hub_->post([] {});
}

}  // namespace millrace::flow::detail
