// The trace of a program's work: with MILLRACE_TRACE=FILE, each request, completion, state change
// and registration becomes a line of JSON at the end of FILE. Called when the device is opened, and
// by traced_calls.cpp.
//
// Opening puts tracing operations into the context in place of the device's own, so a program that
// is not traced pays nothing. Lines are whole: each group is one write to a file opened for
// appending, which several threads and processes may share; what is written survives a crash.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "system/descriptor.hpp"

namespace millrace::soft {

struct Context;

class Tracing {
  public:
    /// Null: MILLRACE_TRACE is not set. Throws Error if nothing can be written to the file.
    [[nodiscard]] static std::unique_ptr<Tracing> from_environment();

    /// Takes the place of the context's operations, which must be complete.
    static void install(Context& context);

    /// What traced_calls.cpp tells: what was made or changed, or tried in vain (`error`: 0 or an
    /// errno value); and what is about to end, because the trace may end with it. If that was
    /// refused after all, the object is still there, and it is told again with the error.
    void queue_pair_made(const ibv_qp* qp, ibv_qp_type type, int error) noexcept;
    void queue_pair_ends(std::uint32_t qpn, int error = 0) noexcept;
    void modified(const ibv_qp* qp, const ibv_qp_attr& attributes, int mask, int error) noexcept;
    void registered(const ibv_mr* mr, const void* address, std::size_t length, unsigned access,
                    int error) noexcept;
    void deregisters(const ibv_mr& mr, int error = 0) noexcept;
    void closes() noexcept;
    /// What a poll gave that did not go through the context's operations.
    void polled(int found, const ibv_wc* completions) noexcept;

  private:
    explicit Tracing(Descriptor file) noexcept : file_{std::move(file)} {}

    /// The operations that are in the context.
    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
    [[nodiscard]] static Tracing& of(ibv_context* context) noexcept;

    [[nodiscard]] int opened() noexcept;  ///< an errno value: it cannot be written
    /// Writes what `fill(lines)` appends; what there is no room for is left out, and logged once.
    template <class Fill>
    void write(Fill&& fill) noexcept;
    /// The same for one line about `call`.
    template <class Fill>
    void write_line(std::string_view call, int error, Fill&& fill) noexcept;
    /// Posts, and writes down what is refused.
    template <class Request, class Post>
    int pass_on(std::string_view call, std::string_view queue, std::uint32_t number, Request** bad,
                Post&& post) noexcept;

    Descriptor file_;
    std::atomic<int> lost_ = 0;  ///< why there are lines that could not be written: errno
    ibv_context_ops inner_{};    ///< what the context had
};

}  // namespace millrace::soft
