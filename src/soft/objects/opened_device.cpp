#include "objects/opened_device.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>

#include "fabric/node.hpp"
#include "layout/layout.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"

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

/// What other processes' devices give handles for, they give below these.
constexpr std::uint32_t handles_of_borrowers = 1 << 20;
static_assert(handles_of_borrowers >= domain_handles && handles_of_borrowers >= regions_per_node);

[[nodiscard]] Descriptor duplicate(int descriptor) {
    Descriptor copy{::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
    if (!copy) {
        base::throw_errno(errno, "open the soft device", "its command descriptor");
    }
    return copy;
}

void enlist(const std::shared_ptr<OpenedDevice>& opened, int file) {
    const auto name = file_name_of(file);
    if (!name) return;
    const std::lock_guard guard{directory().mutex};
    directory().devices[*name] = opened;
}

}  // namespace

std::shared_ptr<OpenedDevice> OpenedDevice::open() {
    const char* const mode = std::getenv("MILLRACE_SOFT_MODE");
    auto opened = std::make_shared<OpenedDevice>(current_process(), mode_of_environment());
    Node& node = opened->process->node();
    opened->own_file_.emplace(node.number(), node.identity(), mode == nullptr ? "" : mode);
    opened->domains_.end = domain_handles;
    opened->memories_.end = memory_handles;
    enlist(opened, opened->file());
    return opened;
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

std::shared_ptr<OpenedDevice> OpenedDevice::borrow(int descriptor) {
    const auto facts = read_device_facts(descriptor);
    if (!facts) return nullptr;
    const std::string_view mode{facts->mode, facts->mode_length};
    auto opened =
        std::make_shared<OpenedDevice>(current_process(), mode.empty() ? Mode{} : parse_mode(mode));
    opened->file_ = duplicate(descriptor);
    opened->lender_ = Lender::find(opened->process->node(), opened->file(), *facts);
    opened->domains_.last = opened->memories_.last = handles_of_borrowers;
    opened->first_handle_ = handles_of_borrowers;
    enlist(opened, opened->file());
    return opened;
}

OpenedDevice::OpenedDevice(std::shared_ptr<Process> opener, const Mode& chosen)
    : process{std::move(opener)},
      mode{chosen},
      yields{base::yields_of_environment()},
      cable{chosen.scheduled() ? Cable::open(chosen) : nullptr} {}

OpenedDevice::~OpenedDevice() {
    if (const auto name = file_name_of(file())) {
        const std::lock_guard guard{directory().mutex};
        const auto found = directory().devices.find(*name);
        if (found != directory().devices.end() && found->second.expired()) {
            directory().devices.erase(found);
        }
    }
    const auto end = [this](Registration& registration) {
        try {
            if (end_registration(*process, registration)) return;
        } catch (const std::bad_alloc&) {  // as if somebody were in it
        }
        // What is mapped here only stays mapped.
        static_cast<void>(registration.mapping.release());
        static_cast<void>(registration.file.release());
        base::log_line(base::LogLevel::warn, "soft",
                       "close the device: a stopped process may still be copying from or to memory "
                       "that was registered; it must not be reused");
    };
    for (const auto& [handle, registration] : registrations_) end(*registration);
    for (const auto& registration : kept_) end(*registration);
}

Descriptor OpenedDevice::descriptor() const { return duplicate(file()); }

// --- handles ------------------------------------------------------------------------------------

template <class Object>
void OpenedDevice::Table<Object>::add(const std::shared_ptr<Object>& object) {
    // For `forget`, which cannot fail.
    if (const std::size_t most = objects.size() + free.size() + 1; free.capacity() < most) {
        free.reserve(2 * most);
    }
    const std::uint32_t handle = free.empty() ? last + 1 : free.back();
    if (handle >= end) throw std::bad_alloc{};
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
    if (own_file_) own_file_->show_domain(domain->handle, domain->number);
    return domain;
}

std::shared_ptr<Domain> OpenedDevice::domain(std::uint32_t handle) {
    const std::lock_guard guard{mutex_};
    if (lender_ != nullptr && handle < handles_of_borrowers) return borrow_domain(handle);
    return domains_.find(handle);
}

std::shared_ptr<Domain> OpenedDevice::borrow_domain(std::uint32_t handle) {
    const std::uint32_t origin = lender_->domain(handle);
    if (origin == 0) return nullptr;
    auto& known = borrowed_[handle];
    if (known == nullptr || known->origin != origin || known->users.ended()) {
        known = std::make_shared<Domain>();
        known->number = process->new_pd();
        known->handle = handle;
        known->origin = origin;
    }
    return known;
}

void OpenedDevice::forget(const Domain& domain) noexcept {
    const std::lock_guard guard{mutex_};
    if (own_file_) own_file_->show_domain(domain.handle, 0);
    domains_.forget(domain.handle);
}

void OpenedDevice::add(const std::shared_ptr<DeviceBytes>& memory) {
    struct stat status {};
    if (::fstat(memory->file.get(), &status) != 0) throw std::bad_alloc{};
    const std::lock_guard guard{mutex_};
    memories_.add(memory);
    if (own_file_) {
        own_file_->show_memory(memory->handle, {status.st_ino, status.st_dev, memory->length,
                                                static_cast<std::uint32_t>(memory->file.get()), 0});
    }
}

std::shared_ptr<DeviceBytes> OpenedDevice::device_memory(std::uint32_t handle) {
    if (lender_ != nullptr && handle < handles_of_borrowers) return borrow_memory(handle);
    const std::lock_guard guard{mutex_};
    return memories_.find(handle);
}

std::shared_ptr<DeviceBytes> OpenedDevice::borrow_memory(std::uint32_t handle) const {
    auto memory = std::make_shared<DeviceBytes>();
    memory->file = lender_->memory(handle, memory->length);
    if (!memory->file) return nullptr;
    const std::size_t whole = (memory->length + page_size - 1) / page_size * page_size;
    memory->mapping = Mapping{memory->file.get(), 0, whole, PROT_READ | PROT_WRITE};
    if (!memory->mapping) return nullptr;
    memory->handle = handle;
    return memory;
}

void OpenedDevice::forget(const DeviceBytes& memory) noexcept {
    const std::lock_guard guard{mutex_};
    if (own_file_) own_file_->show_memory(memory.handle, {});
    memories_.forget(memory.handle);
}

void OpenedDevice::add(std::uint32_t key, const std::shared_ptr<Registration>& registration) {
    const std::uint32_t handle = first_handle_ + index_of_key(key);
    const std::lock_guard guard{mutex_};
    registrations_.insert_or_assign(handle, registration);
    registration->handle = handle;
}

void OpenedDevice::keep(const std::shared_ptr<Registration>& registration) noexcept {
    const std::lock_guard guard{mutex_};
    try {
        kept_.push_back(registration);
    } catch (const std::bad_alloc&) {
        // Then it is never given back.
        static_cast<void>(registration->mapping.release());
        static_cast<void>(registration->file.release());
    }
}

std::shared_ptr<Registration> OpenedDevice::registration(std::uint32_t handle) noexcept {
    const std::lock_guard guard{mutex_};
    const auto found = registrations_.find(handle);
    return found == registrations_.end() ? nullptr : found->second;
}

void OpenedDevice::forget(std::uint32_t key, const Registration& registration) noexcept {
    const std::lock_guard guard{mutex_};
    const auto found = registrations_.find(first_handle_ + index_of_key(key));
    if (found != registrations_.end() && found->second.get() == &registration) {
        registrations_.erase(found);
    }
}

bool end_registration(Process& process, Registration& registration) {
    process.node().regions().invalidate(registration.key);
    registration.invalid = true;
    if (!process.queue_pairs().fence_region(registration.key, registration.number)) return false;
    process.node().regions().release(registration.key, false);
    registration.domain->users.leave();
    if (registration.device_memory != nullptr) registration.device_memory->users.leave();
    registration.ended = true;
    return true;
}

}  // namespace millrace::soft
