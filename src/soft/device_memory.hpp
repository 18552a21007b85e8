// Device memory (ibv_alloc_dm): on this device an ordinary shared mapping that programs reach by
// copies and by registering it. Called through verbs_context, and by memory_region.cpp.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>

#include "descriptor.hpp"
#include "mapping.hpp"

namespace millrace::soft {

struct Context;

inline constexpr std::size_t max_device_memory = std::size_t{64} << 20;  ///< per allocation

struct DeviceMemory : ibv_dm {
    Context* owner = nullptr;
    Descriptor file;  ///< open, so that peers can map it
    Mapping mapping;
    std::byte* memory = nullptr;
    std::size_t length = 0;
    std::atomic<int> users{0};  ///< regions of it
};

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept;
/// EBUSY while regions of it are registered.
int free_dm(ibv_dm* memory) noexcept;

}  // namespace millrace::soft
