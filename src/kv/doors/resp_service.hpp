// What the commands of the RESP door need, besides a client and its words: one for all threads of a
// server. Made by the server, used by the door and the commands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "doors/door_service.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/kv/detail/function_ref.hpp"
#include "scan.hpp"

namespace millrace::kv {

struct RespSession;

struct RespService : DoorService {
    using DoorService::DoorService;

    Scans scans{store};
    /// As which CLUSTER knows this server, as long as it lives: 40 hexadecimal digits.
    const std::string node =
        fmt::format("{:016x}{:016x}{:08x}", base::random_bits(), base::random_bits(),
                    static_cast<std::uint32_t>(base::random_bits()));
    /// With the gate alone: calls with every session.
    std::function<void(FunctionRef<void(const RespSession&)>)> each_session;
};

}  // namespace millrace::kv
