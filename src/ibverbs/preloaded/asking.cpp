// See asking.hpp.
#include "asking.hpp"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace millrace::preloaded {
namespace {

std::atomic<const ibverbs::DeviceFiles*> known{nullptr};

constexpr const char* folder_name = "millrace-device-folder";
/// Until there is one, nobody has to look whether a descriptor is one.
std::atomic<bool> folder_descriptors{false};

/// A program's own libibverbs, which some bring along in their package.
int find_other_library(dl_phdr_info* library, std::size_t, void* found) noexcept {
    const char* const slash = std::strrchr(library->dlpi_name, '/');
    if (slash == nullptr || std::strncmp(slash + 1, "libibverbs", 10) != 0) return 0;
    *static_cast<const char**>(found) = library->dlpi_name;
    return 1;
}

/// It asks for the device's files, and finds no device behind them.
void warn_of_other_library(const char* own) noexcept {
    if (void* const known_already = dlopen(own, RTLD_NOW | RTLD_NOLOAD)) {
        dlclose(known_already);
        return;
    }
    const char* other = nullptr;
    if (dl_iterate_phdr(&find_other_library, &other) == 0) return;
    char text[2 * PATH_MAX];
    const int length = std::snprintf(
        text, sizeof text,
        "millrace: this program has loaded another libibverbs, %s, which does not know the soft "
        "device: start it by `millrace soft run --preload`\n",
        other);
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, text, static_cast<std::size_t>(length));
}

/// The drop-in lies beside this library. If the program has it already, this is the same one.
const ibverbs::DeviceFiles* load() noexcept {
    Dl_info self{};
    if (dladdr(reinterpret_cast<void*>(&known), &self) == 0) return nullptr;
    const char* const end = std::strrchr(self.dli_fname, '/');
    if (end == nullptr) return nullptr;
    char path[PATH_MAX];
    const int length = std::snprintf(path, sizeof path, "%.*s/libibverbs.so.1",
                                     static_cast<int>(end - self.dli_fname), self.dli_fname);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof path) return nullptr;
    warn_of_other_library(path);
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return static_cast<const ibverbs::DeviceFiles*>(dlsym(library, "millrace_soft_device_files"));
}

bool starts_with(const char* path, const char* beginning) noexcept {
    return std::strncmp(path, beginning, std::strlen(beginning)) == 0;
}

/// True for all paths that may be the soft device's, and for few others.
bool worth_asking(const char* path) noexcept {
    if (path == nullptr || path[0] != '/') return false;
    if (!starts_with(path, "/sys/") && !starts_with(path, "/dev/infiniband")) return false;
    for (const char* const part : {"soft", "/rdma_cm", "/4d52:", "/pci4d52:"}) {
        if (std::strstr(path, part) != nullptr) return true;
    }
    // One of the folders that the soft device shares?
    std::size_t length = std::strlen(path);
    while (length > 1 && (path[length - 1] == '/' || path[length - 1] == '.')) --length;
    const auto ends_with = [&](const char* end) {
        const std::size_t size = std::strlen(end);
        return length >= size && std::memcmp(path + length - size, end, size) == 0;
    };
    return ends_with("/infiniband") || ends_with("/infiniband_verbs") || ends_with("/misc");
}

}  // namespace

const ibverbs::DeviceFiles& files() noexcept { return *known.load(std::memory_order_acquire); }

FileKind ask(const char* path, bool follow, Answer& answer) noexcept {
    answer.kind = FileKind::elsewhere;
    if (!worth_asking(path)) return answer.kind;
    const int error = errno;
    const ibverbs::DeviceFiles* answers = known.load(std::memory_order_acquire);
    if (answers == nullptr) {
        // What the loader itself opens goes past the C library's exported functions; what the
        // drop-in opens is none of its own files.
        answers = load();
        if (answers == nullptr) {
            errno = error;
            return answer.kind;
        }
        known.store(answers, std::memory_order_release);
    }
    answer.kind = answers->find(path, follow, answer.path);
    if (answer.kind != FileKind::absent) errno = error;
    return answer.kind;
}

int open_folder_descriptor(const Answer& answer, bool close_on_exec) noexcept {
    const int descriptor =
        memfd_create(folder_name, MFD_ALLOW_SEALING | (close_on_exec ? MFD_CLOEXEC : 0U));
    if (descriptor < 0) return -1;
    const auto length = static_cast<ssize_t>(std::strlen(answer.path));
    if (pwrite(descriptor, answer.path, static_cast<std::size_t>(length), 0) != length ||
        fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
            0) {
        const int error = errno;
        close(descriptor);
        errno = error;
        return -1;
    }
    folder_descriptors.store(true, std::memory_order_relaxed);
    return descriptor;
}

bool is_folder_descriptor(int descriptor, char (&path)[PATH_MAX]) noexcept {
    if (descriptor < 0 || !folder_descriptors.load(std::memory_order_relaxed)) return false;
    const int error = errno;
    char link[64];
    char target[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    static Real<ssize_t(const char*, char*, std::size_t)> real_readlink{"readlink"};
    const ssize_t length = real_readlink(link, target, sizeof target - 1);
    bool ours = false;
    if (length > 0) {
        target[length] = '\0';
        ours = std::strncmp(target, "/memfd:", 7) == 0 &&
               std::strncmp(target + 7, folder_name, std::strlen(folder_name)) == 0;
    }
    if (ours) {
        const ssize_t size = pread(descriptor, path, sizeof path - 1, 0);
        ours = size > 0;
        if (ours) path[size] = '\0';
    }
    errno = error;
    return ours;
}

FileKind ask_at(int folder, const char* path, bool follow, Answer& answer) noexcept {
    char whole[PATH_MAX];
    if (path != nullptr && path[0] != '/' && path[0] != '\0' &&
        is_folder_descriptor(folder, whole)) {
        const std::size_t begin = std::strlen(whole);
        const int length = std::snprintf(whole + begin, sizeof whole - begin, "/%s", path);
        if (length > 0 && static_cast<std::size_t>(length) < sizeof whole - begin) {
            return ask(whole, follow, answer);
        }
    }
    return ask(path, follow, answer);
}

}  // namespace millrace::preloaded
