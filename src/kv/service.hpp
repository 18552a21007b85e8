// What a key-value server does with a request: the commands over a Store. It knows no connection
// but the message::Request that it answers. Used by Server.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "millrace/kv/protocol.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/server.hpp"

namespace millrace::kv {

/// Any number of threads, as the store.
class Service {
  public:
    /// What is its server's to do. Called by any of the threads.
    struct Calls {
        std::function<void()> exit;            ///< a client asked for it, and may
        std::function<void()> first_expiring;  ///< the first item that expires was set; once
        std::function<std::string()> stats;    ///< lines that the store does not know
    };
    Service(Store& store, const Permissions& permitted, Calls calls)
        : store_{&store}, permitted_{permitted}, calls_{std::move(calls)} {}

    /// Answers it.
    void operator()(message::Request& request);

    /// An item that expires was set, by whomever. Any thread.
    void note_expiring();
    /// An item that expires was set since the service was made.
    [[nodiscard]] bool has_expiring() const noexcept {
        return has_expiring_.load(std::memory_order_acquire);
    }
    /// How many items a sweep looks at; set by the option "sweep".
    [[nodiscard]] std::size_t sweep_budget() const noexcept {
        return sweep_budget_.load(std::memory_order_relaxed);
    }

  private:
    void get(message::Request& request, const RequestParts& parts);
    void get_several(message::Request& request, const RequestParts& parts);
    void set(message::Request& request, const RequestParts& parts);
    void set_option(message::Request& request, const RequestParts& parts);
    void dump(message::Request& request, const RequestParts& parts);
    void stats(message::Request& request);

    Store* store_;
    Permissions permitted_;
    Calls calls_;
    std::atomic<bool> has_expiring_{false};
    std::atomic<std::size_t> sweep_budget_{20'000};
};

}  // namespace millrace::kv
