// Another process whose opened device was imported: what its protection domains, regions and device
// memory are, and how to come to the bytes. Used by opened_device.cpp and memory_region.cpp.
//
// A NIC's objects are the device's; here they are their process's, and keys are found in the table
// of the node that a request is sent to. So what is imported becomes an object of this process over
// the same bytes, with the addresses of the original and a key of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fabric/fabric.hpp"
#include "objects/device_file.hpp"
#include "regions/region_facts.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

/// A region as it can be registered here.
struct LentRegion {
    RegionFacts facts{};
    std::uint32_t domain = 0;  ///< the handle of its protection domain
    Descriptor file;           ///< open, so that our peers can map it
    Mapping mapping;           ///< empty: a region without memory
    std::size_t skip = 0;      ///< where in the mapping its first byte is
};

class Lender {
  public:
    /// Finds the process that opened the device: `file` is that device's. Throws base::Error.
    [[nodiscard]] static std::unique_ptr<Lender> find(Node& own, int file,
                                                      const DeviceFacts& facts);
    Lender(int file, std::shared_ptr<PeerNode> owner) : file_{file}, owner_{std::move(owner)} {}

    /// The number of a protection domain over there; 0: there is none.
    [[nodiscard]] std::uint32_t domain(std::uint32_t handle) const noexcept;
    /// 0 and `region`; ENOENT, or EOPNOTSUPP (logged): its memory is that process's alone.
    [[nodiscard]] int region(std::uint32_t handle, LentRegion& region) const;
    /// Empty: there is no such memory. `length` is what was asked for there.
    [[nodiscard]] Descriptor memory(std::uint32_t handle, std::size_t& length) const;

  private:
    int file_;
    std::shared_ptr<PeerNode> owner_;
};

}  // namespace millrace::soft
