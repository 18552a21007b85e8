// Implementation of opened_device.hpp.
#include "opened_device.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>

#include "layout.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"

namespace millrace::soft {
namespace {

/// Which file: what a descriptor leads to, however it was come by.
using FileName = std::pair<dev_t, ino_t>;

[[nodiscard]] std::optional<FileName> name_of(int descriptor) noexcept {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    return FileName{status.st_dev, status.st_ino};
}

struct Directory {
    std::mutex mutex;
    std::map<FileName, std::weak_ptr<OpenedDevice>> devices;
};

/// Never destroyed: a program may close its devices after that.
[[nodiscard]] Directory& directory() {
    static Directory& instance = *new Directory;
    return instance;
}

[[nodiscard]] Descriptor make_file() {
    Descriptor file{::memfd_create("millrace-device", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (!file || ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        base::throw_errno(errno, "open the soft device", "its command descriptor",
                          "raise the limit on open files (ulimit -n)");
    }
    return file;
}

}  // namespace

std::shared_ptr<OpenedDevice> OpenedDevice::open() {
    const Mode mode = mode_of_environment();
    auto opened = std::make_shared<OpenedDevice>(Process::current(), mode);
    if (const auto name = name_of(opened->file_.get())) {
        const std::lock_guard guard{directory().mutex};
        directory().devices[*name] = opened;
    }
    return opened;
}

std::shared_ptr<OpenedDevice> OpenedDevice::behind(int descriptor) noexcept {
    const auto name = name_of(descriptor);
    if (!name) return nullptr;
    const std::lock_guard guard{directory().mutex};
    const auto found = directory().devices.find(*name);
    auto opened = found == directory().devices.end() ? nullptr : found->second.lock();
    // A child made by fork has the parent's descriptors, but not its device.
    return opened != nullptr && opened->process->node().usable() ? opened : nullptr;
}

OpenedDevice::OpenedDevice(std::shared_ptr<Process> owner, const Mode& chosen)
    : process{std::move(owner)},
      mode{chosen},
      link{chosen.scheduled() ? Link::open(chosen) : nullptr},
      file_{make_file()} {}

OpenedDevice::~OpenedDevice() {
    if (const auto name = name_of(file_.get())) {
        const std::lock_guard guard{directory().mutex};
        directory().devices.erase(*name);
    }
    for (const auto& [handle, registration] : registrations_) {
        try {
            if (end_registration(*process, *registration)) continue;
        } catch (const std::bad_alloc&) {  // as if somebody were in it
        }
        base::log_line(base::LogLevel::warn, "soft",
                       "close the device: a stopped process may still be copying from or to memory "
                       "that was registered; it must not be reused");
    }
}

Descriptor OpenedDevice::descriptor() const {
    Descriptor copy{::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)};
    if (!copy) {
        base::throw_errno(errno, "open the soft device", "its command descriptor",
                          "raise the limit on open files (ulimit -n)");
    }
    return copy;
}

// --- handles
// --------------------------------------------------------------------------------------

template <class Object>
void OpenedDevice::Table<Object>::add(const std::shared_ptr<Object>& object) {
    // For `forget`, which cannot fail.
    if (const std::size_t most = objects.size() + free.size() + 1; free.capacity() < most) {
        free.reserve(2 * most);
    }
    const std::uint32_t handle = free.empty() ? last + 1 : free.back();
    objects.emplace(handle, object);
    object->handle = handle;
    if (free.empty()) {
        last = handle;
    } else {
        free.pop_back();
    }
}

template <class Object>
std::shared_ptr<Object> OpenedDevice::Table<Object>::find(std::uint32_t handle) const noexcept {
    const auto found = objects.find(handle);
    return found == objects.end() ? nullptr : found->second;
}

template <class Object>
void OpenedDevice::Table<Object>::forget(std::uint32_t handle) noexcept {
    if (objects.erase(handle) != 0) free.push_back(handle);
}

std::shared_ptr<Domain> OpenedDevice::add_domain() {
    auto domain = std::make_shared<Domain>();
    domain->number = process->new_pd();
    const std::lock_guard guard{mutex_};
    domains_.add(domain);
    return domain;
}

std::shared_ptr<Domain> OpenedDevice::domain(std::uint32_t handle) noexcept {
    const std::lock_guard guard{mutex_};
    return domains_.find(handle);
}

void OpenedDevice::forget(const Domain& domain) noexcept {
    const std::lock_guard guard{mutex_};
    domains_.forget(domain.handle);
}

void OpenedDevice::add(const std::shared_ptr<DeviceBytes>& memory) {
    const std::lock_guard guard{mutex_};
    memories_.add(memory);
}

std::shared_ptr<DeviceBytes> OpenedDevice::device_memory(std::uint32_t handle) noexcept {
    const std::lock_guard guard{mutex_};
    return memories_.find(handle);
}

void OpenedDevice::forget(const DeviceBytes& memory) noexcept {
    const std::lock_guard guard{mutex_};
    memories_.forget(memory.handle);
}

void OpenedDevice::add(std::uint32_t handle, const std::shared_ptr<Registration>& registration) {
    const std::lock_guard guard{mutex_};
    registrations_.insert_or_assign(handle, registration);
}

std::shared_ptr<Registration> OpenedDevice::registration(std::uint32_t handle) noexcept {
    const std::lock_guard guard{mutex_};
    const auto found = registrations_.find(handle);
    return found == registrations_.end() ? nullptr : found->second;
}

void OpenedDevice::forget(std::uint32_t handle, const Registration& registration) noexcept {
    const std::lock_guard guard{mutex_};
    const auto found = registrations_.find(handle);
    if (found != registrations_.end() && found->second.get() == &registration) {
        registrations_.erase(found);
    }
}

bool end_registration(Process& process, Registration& registration) {
    process.node().invalidate_region(registration.key);
    registration.invalid = true;
    if (!process.fence_region(registration.number)) return false;
    process.node().release_region(registration.key, false);
    registration.domain->users.leave();
    if (registration.device_memory != nullptr) registration.device_memory->users.leave();
    registration.ended = true;
    return true;
}

}  // namespace millrace::soft
