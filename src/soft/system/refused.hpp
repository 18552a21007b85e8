// How a call says that it makes nothing. Used by the calls that make objects of the device.
#pragma once

#include <cerrno>
#include <cstddef>

namespace millrace::soft {

/// What a call answers that was to make something and does not: null, with errno.
[[nodiscard]] inline std::nullptr_t refused(int error) noexcept {
    errno = error;
    return nullptr;
}

}  // namespace millrace::soft
