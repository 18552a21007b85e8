// What a device does not release yet, because a process that stands still may be in it: kept, and
// tried again when something else is registered or released. Called by regions, domains and
// contexts.
#pragma once

#include <infiniband/verbs.h>

#include <functional>

namespace millrace::verbs {

/// Keeps what tries to release something and says whether it did: it is called again, after all
/// that was kept before it, until it says true. Any thread. Where there is no memory to remember
/// it, it is destroyed and not called. A child made by fork has none of its parent's.
void keep(const ibv_context* device, std::function<bool()> give_back) noexcept;

/// The device is about to be closed: what is kept of it is destroyed and not called.
void forget_kept(const ibv_context* device) noexcept;

/// Calls what is kept, if that was not done within 100 ms. Any thread.
void try_kept() noexcept;

}  // namespace millrace::verbs
