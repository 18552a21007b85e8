// An opened soft device: the ibv_context with its operations, and what is made from it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "millrace/base/detail/yielding.hpp"
#include "process/asynchronous_events.hpp"
#include "regions/registration.hpp"
#include "system/descriptor.hpp"
#include "transport/cable.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

class OpenedDevice;
class Process;
class Tracing;

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
    std::shared_ptr<AsynchronousEvents> events;
    std::shared_ptr<Tracing> tracing;  ///< null, unless MILLRACE_TRACE is set
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
    pthread_mutex_destroy(&context->context.mutex);
    delete context;
}

/// Tells the program. Never blocks, never throws (without memory the event is lost); any thread,
/// with any locks of the soft device held. Not for the hot path.
void raise_async_event(ibv_qp& qp, ibv_event_type type) noexcept;
void raise_async_event(ibv_cq& cq, ibv_event_type type) noexcept;
void raise_async_event(ibv_srq& srq, ibv_event_type type) noexcept;
/// Of a port (IBV_EVENT_PORT_…, LID_CHANGE, …) or, with port 0, of the device.
void raise_async_event(ibv_context& context, ibv_event_type type, int port) noexcept;

/// Called by destroy_*, when nothing raises events of the object any more: drops those that nobody
/// has fetched, and waits until those fetched are acknowledged, as libibverbs does. That is all
/// that its mutex and its condition are for: they end here.
void end_async_events(ibv_qp& qp) noexcept;
void end_async_events(ibv_cq& cq) noexcept;
void end_async_events(ibv_srq& srq) noexcept;

}  // namespace millrace::soft
