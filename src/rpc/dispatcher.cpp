#include "millrace/rpc/dispatcher.hpp"

#include <algorithm>
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

std::string Dispatcher::State::key_of(const connect::Address& address,
                                      const message::ClientOptions& chosen) {
    const connect::Secret& secret = chosen.admission.secret;
    auto known = std::find_if(secrets.begin(), secrets.end(), [&](const connect::Secret& one) {
        return std::ranges::equal(one.bytes(), secret.bytes());
    });
    if (known == secrets.end()) known = secrets.insert(known, secret);
    // What join() refuses is a connection of its own as well, and so always comes there.
    return fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", address.to_string(),
        chosen.protocol.version, chosen.protocol.name, name_of(chosen.transport),
        name_of(chosen.requests), name_of(chosen.answers), ring::name_of(chosen.tuning.carrier),
        static_cast<const void*>(chosen.endpoint.get()), chosen.resumes, chosen.gathers_requests,
        chosen.tuning.posting.inlines, chosen.tuning.posting.signals_selectively,
        chosen.tuning.slot_bytes, chosen.max_answer_bytes, chosen.tuning.large.allowed,
        chosen.tuning.large.longer_than, chosen.tuning.large.max_bytes, known - secrets.begin());
}

std::uint32_t Dispatcher::State::connect(const connect::Address& address,
                                         message::ClientOptions chosen,
                                         const base::Deadline& deadline) {
    chosen.window = options.window;
    chosen.ring_bytes = options.ring_bytes;
    if (chosen.endpoint == nullptr && chosen.transport == connect::Transport::rc) {
        chosen.endpoint = connect::Endpoint::shared();
    }
    std::shared_ptr<Shared> shared;
    {
        const std::lock_guard guard{mutex};
        std::shared_ptr<Shared>& known = connections[key_of(address, chosen)];
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
