// What one ibv_open_device opened: the names (handles) of its protection domains, regions and
// device memory, and the file that is its contexts' cmd_fd. ibv_import_device makes further
// contexts of it in this process, and ibv_import_* look handles up here. Thread-safe. The file is
// empty: a descriptor says what it leads to by its inode, so a duplicate is as good as the first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "millrace/base/detail/yielding.hpp"
#include "process/process.hpp"
#include "regions/registration.hpp"
#include "system/descriptor.hpp"
#include "transport/cable.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

/// Of protection domains; 0 is none.
inline constexpr std::uint32_t domain_handles = 65536;

/// Objects by handle. Handles that were given back are given again, the latest first. Thread-safe.
template <class Object>
class HandleTable {
  public:
    /// `end`: of what handles there can be.
    explicit HandleTable(std::uint32_t end = ~0U) noexcept : end_{end} {}

    /// Gives it a handle. Throws std::bad_alloc.
    void add(const std::shared_ptr<Object>& object) {
        const std::lock_guard guard{mutex_};
        // For `forget`, which cannot fail.
        if (const std::size_t most = objects_.size() + free_.size() + 1; free_.capacity() < most) {
            free_.reserve(2 * most);
        }
        object->handle = free_.empty() ? last_ + 1 : free_.back();
        if (object->handle >= end_) throw std::bad_alloc{};
        objects_.emplace(object->handle, object);
        if (free_.empty()) {
            ++last_;
        } else {
            free_.pop_back();
        }
    }
    /// Gives it the handle `chosen`, for a table of which all are. May throw std::bad_alloc.
    void add(const std::shared_ptr<Object>& object, std::uint32_t chosen) {
        const std::lock_guard guard{mutex_};
        objects_.insert_or_assign(chosen, object);
        object->handle = chosen;
    }
    /// Null: it is not there (any longer).
    [[nodiscard]] std::shared_ptr<Object> find(std::uint32_t handle) noexcept {
        const std::lock_guard guard{mutex_};
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second;
    }
    /// Its handle, or `former`, which it had before it was added again. Nothing where that is
    /// another's.
    void forget(const Object& object) noexcept { forget(object, object.handle); }
    void forget(const Object& object, std::uint32_t former) noexcept {
        const std::lock_guard guard{mutex_};
        const auto found = objects_.find(former);
        if (found == objects_.end() || found->second.get() != &object) return;
        objects_.erase(found);
        if (former <= last_) free_.push_back(former);
    }
    template <class Action>
    void for_each(Action&& action) {
        const std::lock_guard guard{mutex_};
        for (const auto& [handle, object] : objects_) action(*object);
    }

  private:
    std::mutex mutex_;
    std::map<std::uint32_t, std::shared_ptr<Object>> objects_;
    std::vector<std::uint32_t> free_;
    std::uint32_t last_ = 0;
    const std::uint32_t end_;
};

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

    const std::shared_ptr<Process> process;
    const Mode mode;                     ///< chosen when it was opened
    const base::Yields yields;           ///< likewise
    const std::shared_ptr<Cable> cable;  ///< mode `shaped`: what its queue pairs send over
    HandleTable<Domain> domains{domain_handles};
    HandleTable<DeviceBytes> memories;
    HandleTable<Registration> registrations;  ///< by the index of their key

  private:
    Descriptor file_;
};

/// Makes the registration invalid and waits, at most a second, until nobody copies from or to its
/// memory. Then its key is free for another. Else, as QueuePairs::fence_region, an errno value: it
/// can be asked again.
[[nodiscard]] int end_registration(Process& process, Registration& registration) noexcept;

}  // namespace millrace::soft
