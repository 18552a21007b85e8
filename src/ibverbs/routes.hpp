// What the routes call for an object that is not the soft device's: system_<name>, one trampoline
// to the system's libibverbs per ROUTED row of symbols.inc, with the signature of <name>.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>

// <infiniband/verbs.h> hides some functions behind macros of the same name.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

extern "C" {

// Exported by libibverbs, declared by none of its public headers.
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index,
                       int* type) __asm__("private_ibv_query_gid_type");
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size);

#define ROUTED(name, version, answer) \
    extern __attribute__((visibility("hidden"))) decltype(name) system_##name;
#define FORWARDED(name, version, answer)
#define PRIVATE(name, answer)
#define OLD(name, answer)
#include "symbols.inc"
#undef ROUTED
#undef FORWARDED
#undef PRIVATE
#undef OLD
}

namespace millrace::ibverbs {

/// What the soft device answered with an errno value: libibverbs' functions set errno, too.
inline int told(int error) noexcept {
    if (error != 0) errno = error;
    return error;
}
/// The answer to what the soft device does not do: NULL and EOPNOTSUPP.
inline std::nullptr_t refuse_pointer() noexcept {
    errno = EOPNOTSUPP;
    return nullptr;
}
/// The same for functions that return an errno value.
inline int refuse() noexcept { return told(EOPNOTSUPP); }
/// The same for functions that return -1 and set errno.
inline int fail(int error = EOPNOTSUPP) noexcept {
    errno = error;
    return -1;
}

}  // namespace millrace::ibverbs
