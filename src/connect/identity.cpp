// Reads what identifies this host and the reach of its soft device from the system.
#include "identity.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::connect {
namespace {

std::uint64_t namespace_number(const char* path) noexcept {
    struct stat status {};
    return stat(path, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::string host_name() {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
    return name.data();
}

std::string soft_fabric() {
    const char* fabric = std::getenv("MILLRACE_FABRIC");
    constexpr const char* file = "/proc/sys/kernel/random/boot_id";
    static const std::string boot = [] {
        std::string id;
        errno = 0;
        if (!(std::ifstream{file} >> id)) {
            base::throw_errno(errno != 0 ? errno : EIO, "tell this host from others", file,
                              "mount /proc");
        }
        return id;
    }();
    return fmt::format(
        "fabric '{}' of user {} on {} (boot {}, network namespace {}, process namespace {}), mode "
        "{}",
        fabric != nullptr && *fabric != '\0' ? fabric : "default", getuid(), host_name(),
        boot.substr(0, 13), namespace_number("/proc/self/ns/net"),
        namespace_number("/proc/self/ns/pid"), verbs::soft_mode());
}

}  // namespace millrace::connect
