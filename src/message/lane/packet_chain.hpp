// Packets that go with one doorbell. Used by lanes over packets (packet_lane.hpp).
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>

#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

struct PacketChain {
    static constexpr std::size_t most = 16;
    verbs::Batch<most> batch;
    std::array<ibv_sge, most> slices;  ///< by place in it; set where it has one
};

}  // namespace millrace::message
