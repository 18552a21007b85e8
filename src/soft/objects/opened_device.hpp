// What one ibv_open_device opened: the names (handles) of its protection domains, regions and
// device memory, and the file that is its contexts' cmd_fd. ibv_import_device makes further
// contexts of it in this process, and ibv_import_* look handles up here. Thread-safe.
//
// A descriptor says what it leads to by its inode, so a duplicate made by dup is as good as the
// first. The file is empty.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "millrace/base/yielding.hpp"
#include "process/process.hpp"
#include "regions/registration.hpp"
#include "system/descriptor.hpp"
#include "transport/cable.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

/// Of protection domains; 0 is none.
inline constexpr std::uint32_t domain_handles = 65536;

class OpenedDevice {
  public:
    /// Opens the device anew, as the environment says. Throws base::Error.
    [[nodiscard]] static std::shared_ptr<OpenedDevice> open();
    /// What a duplicate of a context's cmd_fd leads to. Null: to none that this process has open.
    [[nodiscard]] static std::shared_ptr<OpenedDevice> behind(int descriptor) noexcept;
    /// Does it lead to a device that was opened once, here or in another process?
    [[nodiscard]] static bool leads_to_one(int descriptor) noexcept;

    /// Throws base::Error.
    OpenedDevice(std::shared_ptr<Process> opener, const Mode& chosen);
    /// Deregisters what no handle is left of, as a device does that nobody has open any more.
    ~OpenedDevice();
    OpenedDevice(const OpenedDevice&) = delete;
    OpenedDevice& operator=(const OpenedDevice&) = delete;

    /// A descriptor of its own for another context.
    [[nodiscard]] Descriptor descriptor() const;

    // Each adds under a new handle, finds, or forgets. What is not there (any longer) is found as
    // null. Adding may throw std::bad_alloc.
    [[nodiscard]] std::shared_ptr<Domain> add_domain();
    [[nodiscard]] std::shared_ptr<Domain> domain(std::uint32_t handle);
    void forget(const Domain& domain) noexcept;
    void add(const std::shared_ptr<DeviceBytes>& memory);
    [[nodiscard]] std::shared_ptr<DeviceBytes> device_memory(std::uint32_t handle);
    void forget(const DeviceBytes& memory) noexcept;
    /// Its handle comes from the index of its key.
    void add(std::uint32_t key, const std::shared_ptr<Registration>& registration);
    [[nodiscard]] std::shared_ptr<Registration> registration(std::uint32_t handle) noexcept;
    void forget(std::uint32_t key, const Registration& registration) noexcept;

    const std::shared_ptr<Process> process;
    const Mode mode;                     ///< chosen when it was opened
    const base::Yields yields;           ///< likewise
    const std::shared_ptr<Cable> cable;  ///< mode `shaped`: what its queue pairs send over

  private:
    /// By handle. Handles that were given back are given again, the latest first.
    template <class Object>
    struct Table {
        std::map<std::uint32_t, std::shared_ptr<Object>> objects;
        std::vector<std::uint32_t> free;
        std::uint32_t last = 0;
        std::uint32_t end = ~0U;  ///< of what handles there can be

        void add(const std::shared_ptr<Object>& object);
        [[nodiscard]] std::shared_ptr<Object> find(std::uint32_t handle) const noexcept;
        void forget(std::uint32_t handle) noexcept;
    };

    Descriptor file_;
    std::mutex mutex_;
    Table<Domain> domains_;
    Table<DeviceBytes> memories_;
    std::map<std::uint32_t, std::shared_ptr<Registration>> registrations_;
};

/// Makes the registration invalid and waits, at most a second, until nobody copies from or to its
/// memory; false: somebody may, and it can be asked again. Then its key is free for another.
/// May throw std::bad_alloc: to be asked again, too.
[[nodiscard]] bool end_registration(Process& process, Registration& registration);

}  // namespace millrace::soft
