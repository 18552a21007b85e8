// What a client of the RESP door is to the commands. One thread's, but for a look with the gate
// alone (gate.hpp). Used by the door, which has one for each connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "doors/door_session.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

struct RespCommand;

/// A transaction of MULTI, and what WATCH was told before.
struct RespTransaction {
    struct Queued {
        const RespCommand* command;
        std::vector<std::string> arguments;
    };
    bool is_open = false;
    bool is_broken = false;  ///< one of its commands was refused
    std::vector<Queued> queue;
    std::map<std::string, Version, std::less<>> watched;  ///< by key; 0: there was none
    std::size_t bytes = 0;                                ///< of both, about
};

struct RespSession : DoorSession {
    std::string name;
    std::string library;
    std::string library_version;
    int protocol = 2;
    bool is_kept = false;                  ///< CLIENT NO-EVICT, for CLIENT LIST
    const RespCommand* command = nullptr;  ///< the last one
    RespTransaction transaction;
};

}  // namespace millrace::kv
