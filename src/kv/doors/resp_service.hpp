// What the commands of the RESP door need, besides a client and its words: one for all threads of a
// server. Made by the server, used by the door and the commands.
#pragma once

#include <functional>

#include "doors/door_service.hpp"
#include "function_ref.hpp"
#include "scan.hpp"

namespace millrace::kv {

struct RespSession;

struct RespService : DoorService {
    using DoorService::DoorService;

    Scans scans{store};
    /// With the gate alone: calls with every session.
    std::function<void(FunctionRef<void(const RespSession&)>)> each_session;
};

}  // namespace millrace::kv
