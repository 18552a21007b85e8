// What `millrace soft status` and `soft clean` see: an error where they can see nothing, which is
// not the same as nobody being there.
#pragma once

#include <string>

#include "millrace/base/error.hpp"
#include "millrace/soft/survey.hpp"

namespace millrace::tools {

/// soft::survey(). Throws Error where /proc shows no process.
[[nodiscard]] inline soft::Survey seen(const std::string& fabric = {}) {
    soft::Survey survey = soft::survey(fabric);
    if (!survey.sees_processes()) {
        throw base::Error{base::ErrorCode::not_found, "tell who has the soft device open",
                          "from /proc", "it shows no process, not even this one",
                          "mount it: mount -t proc proc /proc"};
    }
    return survey;
}

}  // namespace millrace::tools
