#include "millrace/rpc/detail/path.hpp"

#include <fmt/format.h>

#include "dispatcher_state.hpp"

namespace millrace::rpc::detail {

using base::Status;

Path::Path(std::shared_ptr<Dispatcher> dispatcher, connect::Address address,
           const message::ClientOptions& options, const base::Deadline& deadline)
    : dispatcher_{std::move(dispatcher)}, address_{std::move(address)}, options_{options} {
    number_ = dispatcher_->state().connect(address_, options_, deadline);
    port_ = dispatcher_->state().messages.port({.window = options_.window, .wait = options_.wait});
    port_->to(number_);
}

Status Path::reconnect(const base::Deadline& deadline) {
    if (own_.has_value()) return own_->reconnect(deadline);
    if (!port_.has_value()) return Status::closed;
    try {
        number_ = dispatcher_->state().connect(address_, options_, deadline);
    } catch (const base::Error& error) {
        if (error.code() == base::ErrorCode::timed_out) return Status::timed_out;
        if (error.code() == base::ErrorCode::cancelled) return Status::cancelled;
        throw;
    }
    port_->to(number_);
    return Status::ok;
}

Status Path::close(const base::Deadline& deadline) {
    if (own_.has_value()) return own_->close(deadline);
    port_.reset();
    return Status::ok;
}

int Path::descriptor() {
    if (own_.has_value()) return own_->descriptor();
    if (port_.has_value()) return port_->descriptor();
    throw base::Error{base::ErrorCode::closed, "give a client's descriptor", address_.to_string(),
                      "the client is closed", "connect another one"};
}

message::ClientStats Path::stats() const noexcept {
    return own_.has_value() ? own_->stats() : message::ClientStats{};
}

std::string Path::explain() const {
    if (own_.has_value()) return own_->explain();
    return fmt::format(
        "to {} by connection {} of a dispatcher, requests by {}, answers by {}; {} calls at a time "
        "of this client, {} of all of that connection",
        address_.to_string(), number_, name_of(options_.requests), name_of(options_.answers),
        options_.window, dispatcher_->state().options.window);
}

std::string Path::failure() const {
    if (own_.has_value()) return own_->failure();
    const Status state = dispatcher_->state().messages.state_of(number_);
    return state == Status::ok ? std::string{}
                               : fmt::format("connection {} of the dispatcher has ended ({})",
                                             number_, name_of(state));
}

}  // namespace millrace::rpc::detail
