// The C library's functions that open and look at files, for the soft device's: a file of sysfs is
// opened as a memory file that holds its text, the character device is /dev/null. All other paths
// go to the C library.
//
// Exported under the C library's names, to programs built against any version of it: before 2.33
// they call __xstat and its kin. On 64-bit Linux, stat and stat64 are one structure.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "asking.hpp"

static_assert(sizeof(struct stat) == sizeof(struct stat64));

namespace millrace::preloaded {
namespace {

constexpr std::size_t file_size = 4096;  // as sysfs says of every file

[[nodiscard]] std::uint64_t name_hash(const char* path) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (; *path != '\0'; ++path) hash = (hash ^ static_cast<unsigned char>(*path)) * 0x100000001b3;
    return hash;
}

[[nodiscard]] mode_t mode_of(FileKind kind) noexcept {
    switch (kind) {
        case FileKind::folder:
        case FileKind::shared_folder: return S_IFDIR | 0755;
        case FileKind::link: return S_IFLNK | 0777;
        default: return S_IFREG | 0444;
    }
}

void describe(const Answer& answer, struct stat* status) noexcept {
    std::memset(status, 0, sizeof *status);
    status->st_mode = mode_of(answer.kind);
    status->st_ino = static_cast<ino_t>(name_hash(answer.path));
    status->st_nlink = 1;
    status->st_blksize = static_cast<blksize_t>(file_size);
    status->st_size = answer.kind == FileKind::file ? static_cast<off_t>(file_size) : 0;
}

/// A descriptor from which the file's text is read.
int open_text(const Answer& answer, int flags) noexcept {
    if ((flags & O_ACCMODE) != O_RDONLY) {
        errno = EACCES;
        return -1;
    }
    if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) {
        errno = EEXIST;
        return -1;
    }
    if ((flags & O_DIRECTORY) != 0) {
        errno = ENOTDIR;
        return -1;
    }
    char text[file_size];
    const std::ptrdiff_t length = files().read(answer.path, text, sizeof text);
    if (length < 0) return -1;
    const int descriptor = memfd_create(
        "millrace-device-file", MFD_ALLOW_SEALING | ((flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0U));
    if (descriptor < 0) return -1;
    if (pwrite(descriptor, text, static_cast<std::size_t>(length), 0) != length ||
        fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
            0) {
        const int error = errno;
        close(descriptor);
        errno = error;
        return -1;
    }
    return descriptor;
}

/// `real(path)` opens what the kernel has.
template <class OpenReal>
int open_asked(int folder, const char* path, int flags, const OpenReal& real) noexcept {
    Answer answer;
    const FileKind kind = ask_at(folder, path, (flags & O_NOFOLLOW) == 0, answer);
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    if (kind == FileKind::file) return open_text(answer, flags);
    if (kind == FileKind::link) {
        errno = ELOOP;
        return -1;
    }
    // To be listed, a shared folder is ours with the kernel's entries; else the kernel's, if it has
    // one.
    if (kind == FileKind::shared_folder && (flags & O_DIRECTORY) == 0) {
        const int error = errno;
        const int descriptor = real(path);
        if (descriptor >= 0 || errno != ENOENT) return descriptor;
        errno = error;
    }
    if ((flags & O_ACCMODE) != O_RDONLY) {
        errno = EISDIR;
        return -1;
    }
    return open_folder_descriptor(answer, (flags & O_CLOEXEC) != 0);
}

/// `real(path)` asks the kernel.
template <class StatReal>
int stat_asked(int folder, const char* path, bool follow, struct stat* status,
               const StatReal& real) noexcept {
    Answer answer;
    const FileKind kind = ask_at(folder, path, follow, answer);
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    if (kind == FileKind::shared_folder) {
        const int error = errno;
        if (real(path) == 0) return 0;
        errno = error;
    }
    describe(answer, status);
    return 0;
}

template <class AccessReal>
int access_asked(int folder, const char* path, int mode, bool follow,
                 const AccessReal& real) noexcept {
    Answer answer;
    const FileKind kind = ask_at(folder, path, follow, answer);
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    const int refused = kind == FileKind::file ? W_OK | X_OK : W_OK;
    if ((mode & refused) == 0) return 0;
    errno = EACCES;
    return -1;
}

template <class ReadReal>
ssize_t readlink_asked(int folder, const char* path, char* buffer, std::size_t size,
                       const ReadReal& real) noexcept {
    Answer answer;
    const FileKind kind = ask_at(folder, path, false, answer);
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    if (kind == FileKind::link) return files().read(answer.path, buffer, size);
    errno = EINVAL;
    return -1;
}

template <class RealPath>
char* realpath_asked(const char* path, char* resolved, const RealPath& real) noexcept {
    Answer answer;
    const FileKind kind = ask(path, true, answer);
    if (kind != FileKind::character_device) {  // which has a path of its own
        if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    }
    if (resolved == nullptr) return strdup(answer.path);
    return std::strcpy(resolved, answer.path);
}

Real<int(const char*, int, ...)> real_open{"open"};
Real<int(int, const char*, int, ...)> real_openat{"openat"};
Real<FILE*(const char*, const char*)> real_fopen{"fopen"};
Real<int(const char*, struct stat*)> real_stat{"stat"};
Real<int(const char*, struct stat*)> real_lstat{"lstat"};
Real<int(int, const char*, struct stat*, int)> real_fstatat{"fstatat"};
Real<int(int, const char*, struct stat*)> real_xstat{"__xstat"};
Real<int(int, const char*, struct stat*)> real_lxstat{"__lxstat"};
Real<int(int, int, const char*, struct stat*, int)> real_fxstatat{"__fxstatat"};
Real<int(int, const char*, int, unsigned, struct statx*)> real_statx{"statx"};
Real<int(const char*, int)> real_access{"access"};
Real<int(const char*, int)> real_eaccess{"eaccess"};
Real<int(int, const char*, int, int)> real_faccessat{"faccessat"};
Real<ssize_t(const char*, char*, std::size_t)> real_readlink{"readlink"};
Real<ssize_t(int, const char*, char*, std::size_t)> real_readlinkat{"readlinkat"};
Real<char*(const char*, char*)> real_realpath{"realpath"};

int open_plain(const char* path, int flags, mode_t mode) noexcept {
    return open_asked(AT_FDCWD, path, flags,
                      [&](const char* at) { return real_open(at, flags, mode); });
}
int open_at(int folder, const char* path, int flags, mode_t mode) noexcept {
    return open_asked(folder, path, flags,
                      [&](const char* at) { return real_openat(folder, at, flags, mode); });
}

/// As fopen(3): only reading can succeed.
FILE* open_stream(const char* path, const char* mode) noexcept {
    Answer answer;
    const FileKind kind = ask(path, true, answer);
    const auto real = [mode](const char* at) { return real_fopen(at, mode); };
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    if (kind != FileKind::file) {
        errno = EISDIR;
        return nullptr;
    }
    const bool writes = mode[0] != 'r' || std::strchr(mode, '+') != nullptr;
    const int flags =
        (writes ? O_RDWR : O_RDONLY) | (std::strchr(mode, 'e') != nullptr ? O_CLOEXEC : 0);
    const int descriptor = open_text(answer, flags);
    if (descriptor < 0) return nullptr;
    FILE* const stream = fdopen(descriptor, mode);
    if (stream == nullptr) close(descriptor);
    return stream;
}

/// The argument that is there only if the flags say so.
#define MILLRACE_MODE(flags)                                          \
    mode_t mode = 0;                                                  \
    if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) { \
        va_list arguments;                                            \
        va_start(arguments, flags);                                   \
        mode = static_cast<mode_t>(va_arg(arguments, int));           \
        va_end(arguments);                                            \
    }

}  // namespace
}  // namespace millrace::preloaded

using namespace millrace::preloaded;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int open(const char* path, int flags, ...) {
    MILLRACE_MODE(flags)
    return open_plain(path, flags, mode);
}
EXPORTED int open64(const char* path, int flags, ...) {
    MILLRACE_MODE(flags)
    return open_plain(path, flags | O_LARGEFILE, mode);
}
EXPORTED int openat(int folder, const char* path, int flags, ...) {
    MILLRACE_MODE(flags)
    return open_at(folder, path, flags, mode);
}
EXPORTED int openat64(int folder, const char* path, int flags, ...) {
    MILLRACE_MODE(flags)
    return open_at(folder, path, flags | O_LARGEFILE, mode);
}
EXPORTED int __open_2(const char* path, int flags) { return open_plain(path, flags, 0); }
EXPORTED int __open64_2(const char* path, int flags) {
    return open_plain(path, flags | O_LARGEFILE, 0);
}
EXPORTED int __openat_2(int folder, const char* path, int flags) {
    return open_at(folder, path, flags, 0);
}
EXPORTED int __openat64_2(int folder, const char* path, int flags) {
    return open_at(folder, path, flags | O_LARGEFILE, 0);
}

EXPORTED FILE* fopen(const char* path, const char* mode) { return open_stream(path, mode); }
EXPORTED FILE* fopen64(const char* path, const char* mode) { return open_stream(path, mode); }

EXPORTED int stat(const char* path, struct stat* status) noexcept {
    return stat_asked(AT_FDCWD, path, true, status,
                      [&](const char* at) { return real_stat(at, status); });
}
EXPORTED int lstat(const char* path, struct stat* status) noexcept {
    return stat_asked(AT_FDCWD, path, false, status,
                      [&](const char* at) { return real_lstat(at, status); });
}
EXPORTED int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
    return stat_asked(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, status,
                      [&](const char* at) { return real_fstatat(folder, at, status, flags); });
}
EXPORTED int stat64(const char* path, struct stat64* status) noexcept {
    return stat(path, reinterpret_cast<struct stat*>(status));
}
EXPORTED int lstat64(const char* path, struct stat64* status) noexcept {
    return lstat(path, reinterpret_cast<struct stat*>(status));
}
EXPORTED int fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
    return fstatat(folder, path, reinterpret_cast<struct stat*>(status), flags);
}
EXPORTED int __xstat(int version, const char* path, struct stat* status) noexcept {
    return stat_asked(AT_FDCWD, path, true, status,
                      [&](const char* at) { return real_xstat(version, at, status); });
}
EXPORTED int __lxstat(int version, const char* path, struct stat* status) noexcept {
    return stat_asked(AT_FDCWD, path, false, status,
                      [&](const char* at) { return real_lxstat(version, at, status); });
}
EXPORTED int __fxstatat(int version, int folder, const char* path, struct stat* status,
                        int flags) noexcept {
    return stat_asked(
        folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, status,
        [&](const char* at) { return real_fxstatat(version, folder, at, status, flags); });
}
EXPORTED int __xstat64(int version, const char* path, struct stat64* status) noexcept {
    return __xstat(version, path, reinterpret_cast<struct stat*>(status));
}
EXPORTED int __lxstat64(int version, const char* path, struct stat64* status) noexcept {
    return __lxstat(version, path, reinterpret_cast<struct stat*>(status));
}
EXPORTED int __fxstatat64(int version, int folder, const char* path, struct stat64* status,
                          int flags) noexcept {
    return __fxstatat(version, folder, path, reinterpret_cast<struct stat*>(status), flags);
}
EXPORTED int statx(int folder, const char* path, int flags, unsigned mask,
                   struct statx* status) noexcept {
    struct stat plain {};
    bool asked_kernel = false;
    const int result =
        stat_asked(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, &plain, [&](const char* at) {
            asked_kernel = real_statx(folder, at, flags, mask, status) == 0;
            return asked_kernel ? 0 : -1;
        });
    if (result != 0 || asked_kernel) return result;
    std::memset(status, 0, sizeof *status);
    status->stx_mask = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_INO | STATX_SIZE;
    status->stx_mode = static_cast<std::uint16_t>(plain.st_mode);
    status->stx_ino = plain.st_ino;
    status->stx_nlink = 1;
    status->stx_size = static_cast<std::uint64_t>(plain.st_size);
    status->stx_blksize = static_cast<std::uint32_t>(plain.st_blksize);
    return 0;
}

EXPORTED int access(const char* path, int mode) noexcept {
    return access_asked(AT_FDCWD, path, mode, true,
                        [&](const char* at) { return real_access(at, mode); });
}
EXPORTED int eaccess(const char* path, int mode) noexcept {
    return access_asked(AT_FDCWD, path, mode, true,
                        [&](const char* at) { return real_eaccess(at, mode); });
}
EXPORTED int euidaccess(const char* path, int mode) noexcept { return eaccess(path, mode); }
EXPORTED int faccessat(int folder, const char* path, int mode, int flags) noexcept {
    return access_asked(folder, path, mode, (flags & AT_SYMLINK_NOFOLLOW) == 0,
                        [&](const char* at) { return real_faccessat(folder, at, mode, flags); });
}

EXPORTED ssize_t readlink(const char* path, char* buffer, std::size_t size) noexcept {
    return readlink_asked(AT_FDCWD, path, buffer, size,
                          [&](const char* at) { return real_readlink(at, buffer, size); });
}
EXPORTED ssize_t readlinkat(int folder, const char* path, char* buffer, std::size_t size) noexcept {
    return readlink_asked(folder, path, buffer, size, [&](const char* at) {
        return real_readlinkat(folder, at, buffer, size);
    });
}
// The checked versions end the program where the buffer is smaller than said.
EXPORTED ssize_t __readlink_chk(const char* path, char* buffer, std::size_t size,
                                std::size_t room) noexcept {
    if (size > room) std::abort();
    return readlink(path, buffer, size);
}
EXPORTED ssize_t __readlinkat_chk(int folder, const char* path, char* buffer, std::size_t size,
                                  std::size_t room) noexcept {
    if (size > room) std::abort();
    return readlinkat(folder, path, buffer, size);
}

EXPORTED char* realpath(const char* path, char* resolved) noexcept {
    return realpath_asked(path, resolved,
                          [&](const char* at) { return real_realpath(at, resolved); });
}
EXPORTED char* __realpath_chk(const char* path, char* resolved, std::size_t room) noexcept {
    if (room < PATH_MAX) std::abort();
    return realpath(path, resolved);
}
EXPORTED char* canonicalize_file_name(const char* path) noexcept { return realpath(path, nullptr); }
