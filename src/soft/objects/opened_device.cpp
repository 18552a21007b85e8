#include "objects/opened_device.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>

#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "system/file_of_process.hpp"
#include "wire/wire_address.hpp"

namespace millrace::soft {
namespace {

/// Which file: what a descriptor leads to, however it was come by.
using FileName = std::pair<dev_t, ino_t>;

[[nodiscard]] std::optional<FileName> file_name_of(int descriptor) noexcept {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    return FileName{status.st_dev, status.st_ino};
}

struct Directory {
    std::mutex mutex;
    std::map<FileName, std::weak_ptr<OpenedDevice>> devices;
};

/// Never destroyed: a program may close its devices after that. Its mutex, under which nothing is
/// locked and which is taken under no other, is held over fork: a child opens devices, too.
[[nodiscard]] Directory& directory() {
    static Directory& instance = *[] {
        auto* const made = new Directory;
        pthread_atfork([] { directory().mutex.lock(); }, [] { directory().mutex.unlock(); },
                       [] { directory().mutex.unlock(); });
        return made;
    }();
    return instance;
}

[[nodiscard]] Descriptor duplicate(int descriptor) {
    Descriptor copy{::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
    if (!copy) {
        base::throw_errno(errno, "open the soft device", "its command descriptor");
    }
    return copy;
}

}  // namespace

std::shared_ptr<OpenedDevice> OpenedDevice::open() {
    const Mode mode = mode_of_environment();
    if (mode.kind != ModeKind::fast && wire_of_environment().kind != WireChoice::Kind::off) {
        throw base::Error{base::ErrorCode::invalid_argument, "open the soft device with its wire",
                          describe(mode), "the wire carries what mode fast carries, without a model",
                          "unset MILLRACE_SOFT_MODE, or MILLRACE_WIRE"};
    }
    auto opened = std::make_shared<OpenedDevice>(current_process(), mode);
    if (const auto name = file_name_of(opened->file_.get())) {
        const std::lock_guard guard{directory().mutex};
        directory().devices[*name] = opened;
    }
    return opened;
}

bool OpenedDevice::leads_to_one(int descriptor) noexcept try {
    return leads_to(getpid(), descriptor, "/memfd:millrace-device (deleted)");
} catch (const std::bad_alloc&) {
    return false;
}

std::shared_ptr<OpenedDevice> OpenedDevice::behind(int descriptor) noexcept {
    const auto name = file_name_of(descriptor);
    if (!name) return nullptr;
    const std::lock_guard guard{directory().mutex};
    const auto found = directory().devices.find(*name);
    auto opened = found == directory().devices.end() ? nullptr : found->second.lock();
    // A child made by fork has the parent's descriptors, but not its device.
    return opened != nullptr && opened->process->node().usable() ? opened : nullptr;
}

OpenedDevice::OpenedDevice(std::shared_ptr<Process> opener, const Mode& chosen)
    : process{std::move(opener)},
      mode{chosen},
      yields{base::yields_of_environment()},
      cable{chosen.scheduled() ? Cable::open(chosen) : nullptr},
      file_{::memfd_create("millrace-device", MFD_CLOEXEC)} {
    if (!file_)
        base::throw_errno(errno, "open the soft device", "the file of its command descriptor");
}

OpenedDevice::~OpenedDevice() {
    if (const auto name = file_name_of(file_.get())) {
        const std::lock_guard guard{directory().mutex};
        const auto found = directory().devices.find(*name);
        if (found != directory().devices.end() && found->second.expired()) {
            directory().devices.erase(found);
        }
    }
    registrations.for_each([this](Registration& registration) {
        if (end_registration(*process, registration) == 0) return;
        base::log_line(base::LogLevel::warn, "soft",
                       "close the device: a stopped process may still be copying from or to memory "
                       "that was registered; it must not be reused");
    });
}

Descriptor OpenedDevice::descriptor() const { return duplicate(file_.get()); }

int end_registration(Process& process, Registration& registration) noexcept {
    process.node().regions().invalidate(registration.key);
    registration.invalid = true;
    const int error = process.queue_pairs().fence_region(registration.key, registration.number);
    if (error != 0) return error;
    process.node().regions().release(registration.key);
    registration.domain->users.leave();
    if (registration.device_memory != nullptr) registration.device_memory->users.leave();
    registration.ended = true;
    return 0;
}

}  // namespace millrace::soft
