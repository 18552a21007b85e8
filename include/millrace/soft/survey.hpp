// What can be seen of the soft device's fabrics from outside: who takes part, with which queue
// pairs and memory. Reads what the participants publish in their node memory, and /proc; joins
// nothing, writes nothing, connects to nobody. Called by `millrace soft status` and `millrace soft
// clean`.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/statistics.hpp"

namespace millrace::soft {

struct SeenQueuePair {
    std::uint32_t number = 0;
    std::string type;                   ///< RC, UC, UD
    std::string state;                  ///< RESET, INIT, RTR, RTS, SQD, SQE, ERROR
    std::optional<std::uint32_t> peer;  ///< queue pair number, once it is connected
    std::uint32_t pending_sends = 0;    ///< posted, but the peer was not ready
    std::uint32_t posted_receives = 0;  ///< not yet consumed; of all its pool's, if it has one
    /// The receive pool that it takes from: a shared receive queue's handle, or a UD queue pair's
    /// own.
    std::optional<std::uint32_t> pool;
};

struct SeenRegion {
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;  ///< in the owner's address space
    std::uint64_t bytes = 0;
    std::uint32_t access = 0;  ///< ibv_access_flags
    bool shared = false;       ///< peers may map it; else they reach it by process_vm_*
};

/// A process that has opened the device: one node of a fabric.
struct Participant {
    std::string fabric;
    std::uint32_t node = 0;
    uid_t user = 0;
    std::string user_name;  ///< the number, if it has no name
    pid_t pid = 0;          ///< 0: not found (another user's, or beyond this pid namespace)
    std::string program;
    /// False: only its name is seen; what follows is empty. Another user's process, or another
    /// build's.
    bool readable = false;
    std::vector<SeenQueuePair> queue_pairs;
    std::vector<SeenRegion> regions;
    std::uint32_t completion_channels = 0;  ///< that queue pairs have
    std::uint64_t memory_bytes = 0;         ///< of control memory, that are in use
    /// Of the device ("soft device") and of what the process does over it.
    std::vector<base::StatisticsPage::Snapshot> statistics;
};

/// Node memory whose owner is gone: it lives until the last process here closes it.
struct Leftover {
    std::string fabric;
    std::uint32_t node = 0;
    std::uint64_t memory_bytes = 0;
    std::vector<pid_t> holders;
};

struct Survey {
    std::vector<Participant> participants;  ///< by fabric, then node
    std::vector<Leftover> leftovers;
    std::size_t processes_looked_into = 0;
    std::size_t processes_closed_to_us = 0;  ///< of other users, for instance

    /// Whether /proc shows processes: this one is always among them. If not, that nobody was found
    /// says nothing.
    [[nodiscard]] bool sees_processes() const noexcept {
        return processes_looked_into + processes_closed_to_us != 0;
    }
};

/// `fabric` empty: all of them.
[[nodiscard]] Survey survey(std::string_view fabric = {});

}  // namespace millrace::soft
