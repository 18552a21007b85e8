// See version.hpp. cmake/MillraceCommit.cmake writes the commit's header at each build.
#include "version.hpp"

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/verbs/device.hpp"
#include "millrace_commit.hpp"

namespace millrace::tools {
namespace {

std::string compiler() {
#if defined(__clang__)
    return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
    return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string default_device() {
    try {
        const verbs::DeviceFacts facts = verbs::find_device().facts();
        return fmt::format("{} ({})", facts.name, facts.description);
    } catch (const base::Error& error) {
        return fmt::format("none: {}", error.what());
    }
}

}  // namespace

std::string version_text() {
    return fmt::format(
        "millrace {}\n"
        "commit    {}\n"
        "compiler  {}, {}\n"
        "device    {}",
        MILLRACE_VERSION, MILLRACE_COMMIT, compiler(), MILLRACE_BUILD_TYPE, default_device());
}

}  // namespace millrace::tools
