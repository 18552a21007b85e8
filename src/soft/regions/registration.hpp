// What all handles (ibv_pd, ibv_mr, ibv_dm) of one protection domain, registration or device memory
// share: the one that made it, and those that ibv_import_* gave. Used by the verbs objects of this
// folder.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

class RemappedMemory;

/// How many objects use something that ends only while none does, and only once.
class Users {
  public:
    void enter() noexcept { count_.fetch_add(1); }
    void leave() noexcept { count_.fetch_sub(1); }
    [[nodiscard]] bool ended() const noexcept { return count_.load() == ended_; }
    /// 0, EBUSY (used), or ENOENT: it was ended before, through another handle.
    [[nodiscard]] int end() noexcept {
        int none = 0;
        if (count_.compare_exchange_strong(none, ended_)) return 0;
        return none == ended_ ? ENOENT : EBUSY;
    }

  private:
    static constexpr int ended_ = -1;
    std::atomic<int> count_{0};
};

/// A protection domain, or a parent domain, which has its protection domain's number.
struct Domain {
    std::uint32_t number = 0;  ///< in region tables and in blocks
    std::uint32_t handle = 0;
    Users users;
};

inline constexpr std::size_t max_device_memory = std::size_t{64} << 20;  ///< per allocation

struct DeviceBytes {
    std::uint32_t handle = 0;
    Descriptor file;  ///< open, so that peers can map it
    Mapping mapping;
    std::size_t length = 0;
    Users users;  ///< regions of it
};

struct Registration {
    std::uint32_t handle = 0;
    std::uint32_t key = 0;
    std::uint64_t number = 0;  ///< of Process::next_registration
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
    std::uint32_t access = 0;
    std::shared_ptr<Domain> domain;              ///< entered
    std::shared_ptr<DeviceBytes> device_memory;  ///< what it is a region of, if it is; entered
    bool plain = true;                           ///< of the program's memory
    std::shared_ptr<RemappedMemory> remapped;
    bool invalid = false;  ///< dereg_mr has begun and answered EBUSY
    bool ended = false;    ///< deregistered, perhaps through another handle
};

}  // namespace millrace::soft
