#include "millrace/flow/room_descriptor.hpp"

#include <algorithm>

namespace millrace::flow::detail {

int RoomDescriptor::get() {
    if (hub_ == nullptr) {
        own_ = std::make_unique<connect::Hub>(
            connect::Hub::Options{.wait = base::WaitPolicy::blocking()});
        hub_ = own_.get();
    }
    if (own_ != nullptr) own_->adopt();
    is_used_ = true;
    // Whether there is room nobody has looked yet.
    if (watched_.empty()) hub_->post([] {});
    return hub_->descriptor();
}

void RoomDescriptor::found_full(std::span<const int> descriptors) {
    if (own_ != nullptr) own_->adopt();
    std::erase_if(watched_, [&](const Watched& one) {
        if (std::ranges::count(descriptors, one.descriptor) != 0) return false;
        hub_->remove(one.id);
        return true;
    });
    for (const int descriptor : descriptors) {
        if (std::ranges::count(watched_, descriptor, &Watched::descriptor) != 0) continue;
        watched_.push_back({descriptor, hub_->add(descriptor, [] {})});
    }
    (void)hub_->turn();  // what get() and forget() have posted
}

void RoomDescriptor::wake_at(base::Clock::time_point time) {
    if (own_ != nullptr) own_->adopt();
    hub_->remove(alarm_);
    alarm_ = hub_->at(time, [] {});
}

void RoomDescriptor::forget(int descriptor) {
    const auto at = std::ranges::find(watched_, descriptor, &Watched::descriptor);
    if (at == watched_.end()) return;
    if (own_ != nullptr) own_->adopt();
    hub_->remove(at->id);
    watched_.erase(at);
    hub_->post([] {});
}

}  // namespace millrace::flow::detail
