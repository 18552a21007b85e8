// How the preloaded library finds out whether a path is one of the soft device's files, and how it
// reaches the C library's own functions. Called by files.cpp and folders.cpp.
//
// The library is in every process that `millrace soft run` starts, shells included: what is not
// ours costs two string comparisons, and nothing is loaded, allocated or locked for it.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <optional>
#include <type_traits>

#include "answers.hpp"

namespace millrace::preloaded {

using ibverbs::FileKind;

struct Answer {
    FileKind kind = FileKind::elsewhere;
    char path[PATH_MAX];  ///< without links; not set for `elsewhere` and `absent`
};

/// What `path` is. Relative paths are elsewhere. Leaves errno as it is, but for `absent`. With
/// `moved`, and with a shared folder that the kernel has, the caller asks the kernel for
/// `answer.path`.
[[nodiscard]] FileKind ask(const char* path, bool follow, Answer& answer) noexcept;

/// The same, where `path` may be relative to what the descriptor `folder` leads to.
[[nodiscard]] FileKind ask_at(int folder, const char* path, bool follow, Answer& answer) noexcept;

/// A descriptor that stands for a folder of ours: a memory file that holds its path, known by its
/// name. -1 with errno.
[[nodiscard]] int open_folder_descriptor(const Answer& answer, bool close_on_exec) noexcept;
/// True, and its path, if the descriptor is one of those.
[[nodiscard]] bool is_folder_descriptor(int descriptor, char (&path)[PATH_MAX]) noexcept;

/// The drop-in's answers. Only after an answer that was not `elsewhere`.
[[nodiscard]] const ibverbs::DeviceFiles& files() noexcept;

/// What the character device is opened as: anybody may open it for reading and writing.
inline constexpr const char* character_device = "/dev/null";

/// How the C library's functions fail, with errno.
template <class Result>
[[nodiscard]] constexpr Result failure() noexcept {
    if constexpr (std::is_pointer_v<Result>) {
        return nullptr;
    } else {
        return static_cast<Result>(-1);
    }
}

/// The result for a path of `kind` that the kernel alone can tell of, or that is not there;
/// `real(path)` asks the kernel. Nullopt: the soft device has something to tell.
template <class RealCall>
[[nodiscard]] auto kernels_result(FileKind kind, const char* path, const Answer& answer,
                                  const RealCall& real) noexcept
    -> std::optional<decltype(real(path))> {
    switch (kind) {
        case FileKind::elsewhere: return real(path);
        case FileKind::moved: return real(answer.path);
        case FileKind::character_device: return real(character_device);
        case FileKind::absent: return failure<decltype(real(path))>();
        case FileKind::folder:
        case FileKind::shared_folder:
        case FileKind::file:
        case FileKind::link: break;
    }
    return std::nullopt;
}

/// The C library's function of a name, looked up at the first call.
template <class Function>
class Real {
  public:
    explicit constexpr Real(const char* name) noexcept : name_{name} {}

    [[nodiscard]] Function* get() noexcept {
        void* found = found_.load(std::memory_order_acquire);
        if (found == nullptr) {
            const int error = errno;
            found = dlsym(RTLD_NEXT, name_);
            errno = error;
            found_.store(found, std::memory_order_release);
        }
        return reinterpret_cast<Function*>(found);
    }
    template <class... Arguments>
    auto operator()(Arguments... arguments) noexcept {
        Function* const function = get();
        using Result = decltype(function(arguments...));
        if (function == nullptr) {
            errno = ENOSYS;
            return failure<Result>();
        }
        return function(arguments...);
    }

  private:
    const char* name_;
    std::atomic<void*> found_{nullptr};
};

}  // namespace millrace::preloaded
