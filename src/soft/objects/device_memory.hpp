// Device memory (ibv_alloc_dm): on this device an ordinary shared mapping that programs reach by
// copies and by registering it. Called through verbs_context, and by memory_region.cpp.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "regions/registration.hpp"

namespace millrace::soft {

/// A handle of device memory; ibv_import_dm makes further ones.
struct DeviceMemory : ibv_dm {
    std::shared_ptr<DeviceBytes> bytes;
};

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept;
/// EBUSY while regions of it are registered.
int free_dm(ibv_dm* memory) noexcept;

}  // namespace millrace::soft
