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

/// Of the words of `soft_fabric`.
struct Part {
    std::string_view before;
    std::string_view after;
    std::string_view what;
    std::string_view remedy;
};
constexpr Part of_machine{" (boot ", ", network", "machine (its boot id)",
                          "use an RDMA network between machines"};

std::string_view part_of(std::string_view text, const Part& part) {
    const auto begin = text.find(part.before);
    if (begin == text.npos) return {};
    text.remove_prefix(begin + part.before.size());
    return part.after.empty() ? text : text.substr(0, text.find(part.after));
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
    std::string words = fmt::format(
        "fabric '{}' of user {} on {} (boot {}, network namespace {}, process namespace {}), mode "
        "{}",
        fabric != nullptr && *fabric != '\0' ? fabric : "default", getuid(), host_name(),
        boot.substr(0, 13), namespace_number("/proc/self/ns/net"),
        namespace_number("/proc/self/ns/pid"), verbs::soft_mode());
    // Two addresses are two hosts, however near.
    const std::string wire = verbs::soft_wire();
    if (!wire.empty() && wire != "auto") words += fmt::format(", wire at {}", wire);
    return words;
}

bool is_one_machine(std::string_view own, std::string_view others) {
    const std::string_view boot = part_of(own, of_machine);
    return !boot.empty() && boot == part_of(others, of_machine);
}

std::vector<Parting> what_parts(std::string_view own, std::string_view others) {
    static constexpr Part parts[] = {
        of_machine,
        {"' of user ", " on ", "user", "run both as one user"},
        {", process namespace ", "), mode ", "pid namespace",
         "let both see each other's processes (containers: --pid=host or --pid=container:NAME)"},
        {", network namespace ", ", process", "network namespace",
         "let both run in one (containers: --network=host or --network=container:NAME)"},
        {" on ", " (boot ", "host name", "give both one host name (containers: --uts=host)"},
        {"fabric ", " of user ", "fabric", "give both one fabric (MILLRACE_FABRIC)"},
        {"), mode ", ", wire at ", "mode", "give both one mode (MILLRACE_SOFT_MODE)"},
        {", wire at ", "", "address on the wire", "give both one address (MILLRACE_WIRE)"},
    };
    std::vector<Parting> found;
    for (const Part& part : parts) {
        std::string_view mine = part_of(own, part);
        std::string_view theirs = part_of(others, part);
        if (mine == theirs) continue;
        if (mine.empty() || theirs.empty()) {
            // Whose wire has no address of its own has all of the host's; all else is always said.
            if (!part.after.empty()) continue;
            (mine.empty() ? mine : theirs) = "none of its own";
        }
        found.push_back({part.what, mine, theirs, part.remedy});
        // Users and namespaces of two machines have nothing to do with each other.
        if (&part == parts) break;
    }
    return found;
}

}  // namespace millrace::connect
