// Owners of plain verbs objects for the conformance tests, which see a device through libibverbs'
// public interface alone: each object is destroyed by the function that the manual pages name.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace millrace::conformance {

template <auto Destroy>
struct Destroyer {
    template <class Object>
    void operator()(Object* object) const noexcept {
        static_cast<void>(Destroy(object));
    }
};

using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Region = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Channel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using Queue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using SharedQueue = std::unique_ptr<ibv_srq, Destroyer<ibv_destroy_srq>>;
using Address = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
using Window = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;

/// `object`, or std::system_error with errno if the call that should have made it failed.
template <class Object>
[[nodiscard]] Object* made(Object* object, const char* call) {
    if (object == nullptr) throw std::system_error(errno, std::generic_category(), call);
    return object;
}

/// For calls that answer 0 or an errno value.
inline void done(int error, const char* call) {
    if (error != 0)
        throw std::system_error(error > 0 ? error : errno, std::generic_category(), call);
}

/// The answers with which a device says "I do not have this", as against "you asked wrongly".
[[nodiscard]] inline bool says_unsupported(int error) noexcept {
    return error == EOPNOTSUPP || error == ENOSYS;
}

}  // namespace millrace::conformance
