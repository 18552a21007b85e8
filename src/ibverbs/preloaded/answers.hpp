// What the drop-in and the preloaded library agree on: the drop-in knows the soft device's files,
// the preloaded library asks it. They are built together and lie in one folder.
#pragma once

#include <climits>
#include <cstddef>

namespace millrace::ibverbs {

enum class FileKind : int {
    elsewhere,  ///< the soft device has nothing to do with this path
    moved,      ///< the path leads out of its files: ask the kernel for the path given back
    absent,     ///< inside its files, and there is none (errno: ENOENT, ENOTDIR, ELOOP)
    file,
    folder,
    shared_folder,  ///< the kernel's folder of this name, if there is one, and these entries
    link,
    character_device,
};

/// Any thread may call these; none of them throws. Paths are absolute.
struct DeviceFiles {
    /// `path` without links, "." and "..", in `canonical`. `follow`: also if it is a link itself.
    FileKind (*find)(const char* path, bool follow, char (&canonical)[PATH_MAX]);
    /// A file's text or a link's target: writes at most `size` bytes and returns how many. -1: it
    /// is neither.
    std::ptrdiff_t (*read)(const char* canonical, char* buffer, std::size_t size);
    /// Name and kind of a folder's entry `index`, without "." and "..". False: it has no more.
    bool (*entry)(const char* canonical, std::size_t index, char (&name)[NAME_MAX + 1],
                  FileKind* kind);
};

}  // namespace millrace::ibverbs

extern "C" const millrace::ibverbs::DeviceFiles millrace_soft_device_files;
