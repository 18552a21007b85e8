// The system's own libibverbs.so.1, loaded when something is first forwarded to it, and what the
// trampolines of forwarders.S jump to.
//
// It is loaded by absolute path, because by name it would be ourselves. It is not isolated: its
// calls to its own exported functions come to us and go back through the trampolines, and the
// drivers it loads find our exports and are forwarded to it likewise.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "millrace/base/log.hpp"

namespace {

extern "C" int answer_refused() {
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}
extern "C" std::int64_t answer_failed() {
    errno = EOPNOTSUPP;
    return -1;
}
extern "C" void* answer_absent() {
    errno = EOPNOTSUPP;
    return nullptr;
}
extern "C" std::uint64_t answer_zero() { return 0; }
/// The soft device's memory is reached by its address or is shared: fork does it no harm.
extern "C" ibv_fork_status answer_unneeded() { return IBV_FORK_UNNEEDED; }
extern "C" const char* answer_unknown() { return "unknown"; }
extern "C" void answer_silent() {}

constexpr std::string_view private_version = "IBVERBS_PRIVATE_34";

struct Row {
    const char* name;
    std::string_view version;
    void* answer;  ///< jumped to where the system has no such function
};

const Row rows[] = {
#define ROUTED(name, version, answer) {#name, #version, reinterpret_cast<void*>(&answer_##answer)},
#define FORWARDED(name, version, answer) \
    {#name, #version, reinterpret_cast<void*>(&answer_##answer)},
#define PRIVATE(name, answer) {#name, private_version, reinterpret_cast<void*>(&answer_##answer)},
#define OLD(name, answer) {#name, "IBVERBS_1.0", reinterpret_cast<void*>(&answer_##answer)},
#include "symbols.inc"
#undef ROUTED
#undef FORWARDED
#undef PRIVATE
#undef OLD
};

constexpr const char* directories[] = {
#ifdef MILLRACE_LIBRARY_ARCHITECTURE
    "/usr/lib/" MILLRACE_LIBRARY_ARCHITECTURE,
    "/lib/" MILLRACE_LIBRARY_ARCHITECTURE,
#endif
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib64",
    "/usr/local/lib",
};

bool is_this_library(const char* path) {
    Dl_info self{};
    struct stat ours {};
    struct stat theirs {};
    return dladdr(reinterpret_cast<void*>(&answer_zero), &self) != 0 &&
           stat(self.dli_fname, &ours) == 0 && stat(path, &theirs) == 0 &&
           ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

void* load(const std::string& path) {
    struct stat file {};
    if (stat(path.c_str(), &file) != 0 || is_this_library(path.c_str())) return nullptr;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        millrace::base::log(millrace::base::LogLevel::warn, "ibverbs",
                            "cannot load the system's {}: {}", path, dlerror());
        return nullptr;
    }
    // Another copy of the drop-in (an installed one, say) is no system library.
    if (dlsym(library, "millrace_soft_drop_in") != nullptr) {
        dlclose(library);
        return nullptr;
    }
    return library;
}

void* find_system_library() {
    // For libraries in unusual places. Set it to nothing to have the soft device alone.
    if (const char* chosen = std::getenv("MILLRACE_SYSTEM_LIBIBVERBS")) {
        return *chosen == '\0' ? nullptr : load(chosen);
    }
    for (const char* directory : directories) {
        if (void* library = load(std::string{directory} + "/libibverbs.so.1")) return library;
    }
    millrace::base::log(millrace::base::LogLevel::info, "ibverbs",
                        "no libibverbs.so.1 of the system found: only soft devices exist");
    return nullptr;
}

void* system_library() {
    static void* const library = find_system_library();
    return library;
}

}  // namespace

extern "C" {

__attribute__((visibility("hidden"))) std::atomic<void*> millrace_forward_targets[std::size(rows)];
static_assert(sizeof(millrace_forward_targets[0]) == 8 && std::atomic<void*>::is_always_lock_free);

/// Finds where row `index` leads to, and remembers it. Called by forwarders.S.
__attribute__((visibility("hidden"))) void* millrace_look_up_forward(std::uint32_t index) noexcept {
    const int error = errno;
    const Row& row = rows[index];
    void* target = nullptr;
    if (void* library = system_library()) {
        target = dlvsym(library, row.name, row.version.data());
        // A newer one has them under another number.
        if (target == nullptr && row.version == private_version) target = dlsym(library, row.name);
    }
    if (target == nullptr) target = row.answer;
    millrace_forward_targets[index].store(target, std::memory_order_release);
    errno = error;
    return target;
}
}
