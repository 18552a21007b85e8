// An opened soft device: the ibv_context with its operations, and what is made from it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "asynchronous_events.hpp"
#include "link.hpp"
#include "mode.hpp"
#include "process.hpp"
#include "tracing.hpp"

namespace millrace::soft {

struct ThreadDomain : ibv_td {
    std::atomic<int> users{0};
};

struct ProtectionDomain : ibv_pd {
    std::uint32_t number = 0;
    std::atomic<int> users{0};
    /// Of a parent domain: the protection domain that it stands for, whose number it has.
    ProtectionDomain* parent_of = nullptr;
    ThreadDomain* thread_domain = nullptr;

    [[nodiscard]] bool single_threaded() const noexcept { return thread_domain != nullptr; }
};

struct DeviceMemory;
class RemappedMemory;

struct MemoryRegion : ibv_mr {
    std::uint64_t registration = 0;
    std::uint64_t iova = 0;
    std::uint32_t access = 0;
    DeviceMemory* device_memory = nullptr;  ///< what it is a region of, if it is
    bool plain = true;                      ///< of the program's memory
    std::shared_ptr<RemappedMemory> remapped;
    bool invalid = false;  ///< dereg_mr has begun and answered EBUSY
};

struct Context : verbs_context {
    std::shared_ptr<Process> process;
    Mode mode;                   ///< chosen when it was opened
    std::shared_ptr<Link> link;  ///< mode `shaped`: what its queue pairs send over
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

/// One user less; the last one takes the context with it.
inline void release(Context* context) noexcept {
    if (context->users.fetch_sub(1) != 1) return;
    context->process->remove(*context->events);
    pthread_mutex_destroy(&context->context.mutex);
    delete context;
}

}  // namespace millrace::soft
