#include "millrace/rpc/dispatcher.hpp"

#include <utility>

#include <fmt/format.h>

#include "dispatcher_state.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::rpc {

using base::Status;

Dispatcher::State::State(const DispatcherOptions& chosen)
    : options{chosen},
      messages{message::Dispatcher::connect(
          {}, {.client = {}, .wait = chosen.wait, .max_servers = chosen.max_connections},
          base::Deadline::now())} {}

std::uint32_t Dispatcher::State::connect(const connect::Address& address,
                                         message::ClientOptions chosen,
                                         const base::Deadline& deadline) {
    chosen.window = options.window;
    chosen.ring_bytes = options.ring_bytes;
    std::shared_ptr<Shared> shared;
    {
        const std::lock_guard guard{mutex};
        std::shared_ptr<Shared>& known = connections[fmt::format(
            "{} {} {} {}", address.to_string(), name_of(chosen.requests), name_of(chosen.answers),
            static_cast<const void*>(chosen.endpoint.get()))];
        if (known == nullptr) known = std::make_shared<Shared>();
        shared = known;
    }
    std::unique_lock lock{shared->making, std::defer_lock};
    base::NapParker nap;
    const Status waited =
        base::wait_until([&] { return lock.try_lock(); }, deadline, chosen.wait, nap);
    if (waited != Status::ok) {
        throw base::Error{
            waited == Status::cancelled ? base::ErrorCode::cancelled : base::ErrorCode::timed_out,
            "connect by a dispatcher", address.to_string(), "another client is still connecting",
            "is the server there?"};
    }
    if (!shared->number.has_value() || messages.state_of(*shared->number) != Status::ok) {
        shared->number = messages.join(address, chosen, deadline);
    }
    return *shared->number;
}

Dispatcher::Dispatcher(const DispatcherOptions& options)
    : state_{std::make_unique<State>(options)} {}
Dispatcher::~Dispatcher() = default;

Status Dispatcher::run(const base::Deadline& deadline) { return state_->messages.run(deadline); }
std::size_t Dispatcher::turn() { return state_->messages.turn(); }
void Dispatcher::stop() noexcept { state_->messages.stop(); }
void Dispatcher::adopt() noexcept { state_->messages.adopt(); }
Status Dispatcher::close(const base::Deadline& deadline) {
    return state_->messages.close(deadline);
}
message::DispatcherStats Dispatcher::stats() const noexcept { return state_->messages.stats(); }
std::string Dispatcher::explain() const { return state_->messages.explain(); }

}  // namespace millrace::rpc
