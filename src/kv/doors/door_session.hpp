// What a client is to any door. One thread's, but for a look with the gate alone (gate.hpp). Each
// door has a session of its own made of it.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/clock.hpp"

namespace millrace::kv {

struct DoorSession {
    std::uint64_t number = 0;
    int descriptor = -1;
    std::string peer;         ///< "127.0.0.1:4711"
    bool is_known = false;    ///< has said the password, or there is none
    bool is_leaving = false;  ///< is closed once it has its answers
    base::Clock::time_point came{};
    base::Clock::time_point asked{};  ///< last
};

}  // namespace millrace::kv
