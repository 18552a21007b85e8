// Throwing what a verbs call's errno means. Called by every file of this folder.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "millrace/base/error.hpp"

namespace millrace::verbs {

/// For calls that return a pointer: the error is in errno, which some drivers forget to set.
[[noreturn]] inline void throw_call_failed(std::string attempted, std::string object,
                                           std::string remedy = {}) {
    base::throw_errno(errno != 0 ? errno : EIO, std::move(attempted), std::move(object),
                      std::move(remedy));
}

}  // namespace millrace::verbs
