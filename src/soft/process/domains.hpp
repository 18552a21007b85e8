// Protection domains, and who uses them.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "regions/registration.hpp"

namespace millrace::soft {

struct ThreadDomain : ibv_td {
    std::atomic<int> users{0};
};

/// A handle of a protection domain; ibv_import_pd makes further ones.
struct ProtectionDomain : ibv_pd {
    std::uint32_t number = 0;  ///< the domain's
    std::shared_ptr<Domain> domain;
    /// Who needs this handle: the program, until it gives it back, and each object made with it.
    std::atomic<int> holders{1};
    /// Of a parent domain: the protection domain that it stands for, whose number it has.
    ProtectionDomain* parent_of = nullptr;
    ThreadDomain* thread_domain = nullptr;

    [[nodiscard]] bool single_threaded() const noexcept { return thread_domain != nullptr; }
};

/// What is made with a handle of a protection domain calls the one when it is there and the other
/// before it goes: until then the domain is in use, and the handle stays where it is even if the
/// program gives it back (ibv_unimport_pd).
void enter(ibv_pd* pd) noexcept;
void leave(ibv_pd* pd) noexcept;
/// The second half alone, for a further handle of what is in the domain already.
void hold(ibv_pd* pd) noexcept;
void drop(ibv_pd* pd) noexcept;
/// False: the domain was deallocated through another handle. Nothing can be made in it any more.
[[nodiscard]] bool usable(const ibv_pd* pd) noexcept;

}  // namespace millrace::soft
