// Telling the program of asynchronous events: who notices something calls `raise_async_event`, who
// destroys an object calls `end_async_events`.
#pragma once

#include <infiniband/verbs.h>

namespace millrace::soft {

/// Tells the program. Never blocks, never throws (without memory the event is lost); any thread,
/// with any locks of the soft device held. Not for the hot path.
void raise_async_event(ibv_qp& qp, ibv_event_type type) noexcept;
void raise_async_event(ibv_cq& cq, ibv_event_type type) noexcept;
void raise_async_event(ibv_srq& srq, ibv_event_type type) noexcept;
/// Of a port (IBV_EVENT_PORT_…, LID_CHANGE, …) or, with port 0, of the device.
void raise_async_event(ibv_context& context, ibv_event_type type, int port) noexcept;

/// Called by destroy_*, when nothing raises events of the object any more: drops those that nobody
/// has fetched, and waits until those fetched are acknowledged, as libibverbs does.
void end_async_events(ibv_qp& qp) noexcept;
void end_async_events(ibv_cq& cq) noexcept;
void end_async_events(ibv_srq& srq) noexcept;

}  // namespace millrace::soft
