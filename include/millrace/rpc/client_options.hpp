// What may be said of an rpc::Client and of its calls, and what it counts. Included by client.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "millrace/message/client.hpp"
#include "millrace/rpc/design.hpp"
#include "millrace/rpc/dispatcher.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/profile.hpp"

namespace millrace::rpc {

/// When a call is made once more: where nothing was done (is_safe_to_repeat), and, of a procedure
/// that is_idempotent, where nobody knows whether something was. Within the deadline, and within a
/// budget of the client: whatever fails, repeating adds no more than a part to the load.
/// Client::call and AsyncClient::call repeat, and connect anew for that
/// (ClientOptions::reconnects): call() at once, an AsyncClient in a thread of its own. What was
/// submitted ends with its code, and is_safe_to_repeat() tells its callback whether it may be
/// submitted again.
struct RetryPolicy {
    std::uint32_t attempts = 3;    ///< of a call, the first one included; 1: never again
    double budget_per_call = 0.1;  ///< what each call adds to the budget; a repetition takes 1
    double largest_budget = 10;    ///< with which a client begins
    std::chrono::nanoseconds pause = std::chrono::milliseconds{1};  ///< doubled each time
    std::chrono::nanoseconds longest_pause = std::chrono::milliseconds{100};
};

struct ClientOptions {
    /// Of the session beneath. `window`: calls without an answer at a time, which is this client's
    /// own limit. What `requests` and `answers` are is for `design` to say, and refused here.
    message::ClientOptions messages{};
    /// How requests and answers travel: as the program says, or as a profile of measurements says
    /// for what the client is going to do. Of transports other than rc: as it is.
    std::variant<Design, Automatic> design = Design{};
    /// For Connection::dispatcher, which Automatic chooses only among if there is one.
    std::shared_ptr<Dispatcher> dispatcher{};
    /// For Automatic; null: Profile::built_in().
    std::shared_ptr<const Profile> profile{};
    RetryPolicy retry{};
    /// Where the connection has ended, what may be made again (RetryPolicy) connects anew.
    bool reconnects = true;
};

/// What may be said of a call.
struct CallOptions {
    std::optional<Trace> trace{};  ///< travels with it
    Priority priority = Priority::normal;
};

struct ClientStats {
    message::ClientStats messages{};
    std::uint64_t repeated = 0;       ///< calls that were made once more
    std::uint64_t out_of_budget = 0;  ///< that would have been, and were not
    std::uint64_t timed_out = 0;      ///< of those that were submitted
    std::uint64_t tables = 0;         ///< asked for
    std::uint64_t reconnected = 0;
};

}  // namespace millrace::rpc
