// Moves the modelled link of the soft device's mode `shaped` on, for loops that look at memory
// alone: such looks make no verbs call, and the device's own thread, which moves the link as well,
// shares the core with a loop that never sleeps. A NIC needs none of this.
#pragma once

#include <memory>
#include <string>

#include "millrace/connect/link.hpp"
#include "millrace/soft/link_facts.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::bench {

/// One thread. Does nothing in modes that are no link.
class LinkMover {
  public:
    /// Throws Error.
    explicit LinkMover(const std::string& mode) {
        if (!soft::link_facts(mode).shaped) return;
        endpoint_ = connect::Endpoint::shared();
        idle_ = endpoint_->context().create_completion_queue(1);
    }
    void operator()() noexcept {
        if (endpoint_ == nullptr) return;
        verbs::Completion none;
        (void)idle_.poll({&none, 1});
    }

  private:
    std::shared_ptr<connect::Endpoint> endpoint_{};
    verbs::CompletionQueue idle_{};
};

}  // namespace millrace::bench
