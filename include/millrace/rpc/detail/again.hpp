// Submitted calls that are made again as the client's RetryPolicy says, before their callback is
// called (CallOptions::again). Used by client.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/rpc/detail/client_core.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/result.hpp"

namespace millrace::rpc::detail {

struct AgainCall {
    AgainCall(const ClientCore::Attempt& its, const base::Deadline& until, Priority said)
        : attempt{its}, deadline{until}, priority{said} {}
    AgainCall(const AgainCall&) = delete;
    AgainCall& operator=(const AgainCall&) = delete;
    virtual ~AgainCall() = default;
    /// Sets `id`. As Client::submit.
    virtual base::Status send(ClientCore& core) = 0;
    /// Calls the callback, of a call that was taken from the core.
    virtual void end(Code code) = 0;

    ClientCore::Attempt attempt;
    base::Deadline deadline;
    Priority priority;
    std::uint64_t first_id = 0;  ///< by which the caller knows it
    std::uint64_t id = 0;
    Code code = Code::not_sent;  ///< of the last time
    bool is_put_off = false;
    std::uint32_t vain_attempts = 0;  ///< to connect anew, that were counted
    base::Clock::time_point due{};
};

template <UnaryProcedure P, class Callback>
class Again final : public AgainCall {
  public:
    using A = Owned<typename P::Response>;
    Again(const typename P::Request& request, Callback callback, const base::Deadline& until,
          const CallOptions& options)
        : AgainCall{{.place = place_of<P>, .is_idempotent = is_idempotent<P>()},
                    until,
                    options.priority},
          request_{own(request)},
          callback_{std::move(callback)},
          options_{options} {}

    base::Status send(ClientCore& core) override {
        return submit<P>(core, typename P::Request{request_}, deadline, options_, false, id,
                         [&](Record& record) {
                             Submitted<A, Done>::put(record, Done{&core, this});
                         });
    }
    void end(Code with) override { std::invoke(callback_, Result<A>{with}); }

  private:
    using Request = Owned<typename P::Request>;
    struct Done {
        ClientCore* core;
        Again* call;
        void operator()(Result<A> result) const {
            if (!result.ok() && core->puts_off(*call, result.code())) return;
            const std::unique_ptr<AgainCall> owned = core->take(*call);
            std::invoke(call->callback_, std::move(result));
        }
    };
    [[nodiscard]] static Request own(const typename P::Request& request) {
        if constexpr (std::is_same_v<Request, typename P::Request>) {
            return request;
        } else {
            return Request{request.begin(), request.end()};
        }
    }

    Request request_;
    Callback callback_;
    CallOptions options_;
};

}  // namespace millrace::rpc::detail
