#include "millrace/flow/room_waiter.hpp"

#include <algorithm>

namespace millrace::flow::detail {

connect::Hub& RoomWaiter::hub() {
    if (hub_ == nullptr) {
        hub_ = std::make_unique<connect::Hub>(
            connect::Hub::Options{.wait = base::WaitPolicy::blocking()});
    }
    hub_->adopt();
    return *hub_;
}

int RoomWaiter::descriptor(int other) {
    if (!std::exchange(has_descriptor_, true)) {
        if (other >= 0) (void)hub().add(other, [] {});
        // Whether there is room nobody has looked yet.
        hub().post([] {});
    }
    return hub().descriptor();
}

void RoomWaiter::watch(int descriptor) {
    if (std::ranges::count(watched_, descriptor, &Watched::descriptor) != 0) return;
    watched_.push_back({descriptor, hub().add(descriptor, [] {})});
}

void RoomWaiter::watch_only(int descriptor) {
    watches_all_ = false;
    std::erase_if(watched_, [&](const Watched& one) {
        return one.descriptor != descriptor && hub().remove(one.id);
    });
    watch(descriptor);
    settle();
}

void RoomWaiter::wake_at(base::Clock::time_point time) {
    alarm_ = hub().at(time, [] {});
}

void RoomWaiter::settle() {
    hub().remove(std::exchange(alarm_, {}));
    (void)hub().turn();
}

void RoomWaiter::forget(int descriptor) {
    const auto at = std::ranges::find(watched_, descriptor, &Watched::descriptor);
    if (at == watched_.end()) return;
    hub().remove(at->id);
    watched_.erase(at);
    hub().post([] {});
}

void RoomWaiter::rest(const base::Deadline& deadline) {
    (void)hub().rest(deadline);
    (void)hub().turn();
}

}  // namespace millrace::flow::detail
