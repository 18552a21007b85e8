// An opened soft device: the ibv_context with its operations, and what is made from it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "asynchronous_events.hpp"
#include "cable.hpp"
#include "descriptor.hpp"
#include "millrace/base/yielding.hpp"
#include "mode.hpp"
#include "opened_device.hpp"
#include "process.hpp"
#include "registration.hpp"
#include "tracing.hpp"

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

/// A handle of a registration; ibv_import_mr makes further ones, without address.
struct MemoryRegion : ibv_mr {
    std::shared_ptr<Registration> registration;
};

struct Context : verbs_context {
    std::shared_ptr<OpenedDevice> opened;  ///< with the contexts imported from it, and from which
    std::shared_ptr<Process> process;
    Mode mode;                     ///< chosen when it was opened
    base::Yields yields{};         ///< chosen likewise
    Descriptor command;            ///< cmd_fd, until it is closed
    std::shared_ptr<Cable> cable;  ///< mode `shaped`: what its queue pairs send over
    /// Who needs it: the program that opened it, until it closes it, and every object made from
    /// it. A program may close first (perftest does): what it left then works on until it is
    /// destroyed or the process ends.
    std::atomic<int> users{1};
    std::unique_ptr<AsynchronousEvents> events;
    std::unique_ptr<Tracing> tracing;  ///< null, unless MILLRACE_TRACE is set
};

[[nodiscard]] inline Context* context_of(ibv_context* context) noexcept {
    // Ours always is a verbs_context (verbs_get_ctx would ask).
    auto* const bytes = reinterpret_cast<std::byte*>(context) - offsetof(verbs_context, context);
    return static_cast<Context*>(reinterpret_cast<verbs_context*>(bytes));
}

/// Both were opened at once: one is imported from the other, or they are the same.
[[nodiscard]] inline bool opened_together(ibv_context* one, ibv_context* other) noexcept {
    return context_of(one)->opened == context_of(other)->opened;
}

/// One user less; the last one takes the context with it.
inline void release(Context* context) noexcept {
    if (context->users.fetch_sub(1) != 1) return;
    context->process->remove(*context->events);
    pthread_mutex_destroy(&context->context.mutex);
    delete context;
}

}  // namespace millrace::soft
