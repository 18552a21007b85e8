// Listens for the other ends of flow queues. Used by Producer::accept and Consumer::accept.
#pragma once

#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/options.hpp"

namespace millrace::flow {

/// Each accepted link becomes one queue of its own: one producer, one consumer. Move-only; one
/// thread at a time.
class Listener {
  public:
    /// Throws Error (invalid_argument, permission, system: the address is in use …).
    [[nodiscard]] static Listener listen(const connect::Address& address, Options options = {});
    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept { return listener_.address(); }
    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// For a program's own loop: readable means that a try_accept of an end has something to do.
    /// Level-triggered. Lives as long as the listener.
    [[nodiscard]] int descriptor() const noexcept { return listener_.descriptor(); }
    /// What accepts the connections beneath.
    [[nodiscard]] connect::Listener& links() noexcept { return listener_; }

    /// Of a structure whose links are not those of flow queues.
    [[nodiscard]] static Listener over(connect::Listener links, Options options) {
        return Listener{std::move(links), std::move(options)};
    }

  private:
    Listener(connect::Listener listener, Options options)
        : listener_{std::move(listener)}, options_{std::move(options)} {}
    connect::Listener listener_;
    Options options_;
};

}  // namespace millrace::flow
