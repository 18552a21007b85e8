// What lies in a lane of rings, for tests: peers that lie do by it what no lane offers, and others
// look at what it counts.
#pragma once

#include "client/client_access.hpp"
#include "lane/ring_lane.hpp"

namespace millrace::message {

struct RingLaneInside {
    [[nodiscard]] static Channel::Core& core_of(RingLane& lane) { return *lane.core_; }
    [[nodiscard]] static Channel::Core& core_of(Client& client) {
        return core_of(detail::ClientAccess::ring(client));
    }
};

}  // namespace millrace::message
