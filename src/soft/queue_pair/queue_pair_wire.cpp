// A queue pair whose peer is on the wire: whether it is, and what the wire's end asks of it.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "completion/completion_queue.hpp"
#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "process/context.hpp"
#include "process/port.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "transport/mode.hpp"
#include "wire/connected.hpp"
#include "wire/destination.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {
namespace {

class OwnerOnWire final : public WireOwner {
  public:
    explicit OwnerOnWire(QueuePair& qp) noexcept : qp_{qp} {}

    void lock() noexcept override { qp_.sends.lock().lock(); }
    void unlock() noexcept override { qp_.sends.lock().unlock(); }
    [[nodiscard]] ibv_qp_state state() const noexcept override { return qp_.state; }
    [[nodiscard]] ibv_wc_status run_local() noexcept override { return qp_.run_kept_local(held()); }
    void established() noexcept override { qp_.tell_established(); }
    void sends_failed(ibv_wc_status status) noexcept override {
        qp_.begin_send_error(held(), status);
    }
    void moved() noexcept override { qp_.look_after_arrival(held()); }

  private:
    [[nodiscard]] static SendHeld held() noexcept {
        return decltype(QueuePair::sends)::held_by_hand();
    }
    QueuePair& qp_;
};

}  // namespace

std::unique_ptr<Transport> QueuePair::make_wire(const ibv_qp_attr& attributes) {
    Process& process = *owner->process;
    const auto to = address_on_wire(process, attributes.ah_attr, attributes.dest_qp_num);
    if (!to) return nullptr;
    WirePort& wire = *process.wire();
    const auto refuse = [&](std::string why, std::string what_to_do) {
        throw base::Error{base::ErrorCode::invalid_argument, "connect a queue pair over the wire",
                          describe(*to), std::move(why), std::move(what_to_do)};
    };
    if (cable != nullptr) {
        refuse("the device is in mode " + describe(owner->mode) + ", a model of a link",
               "unset MILLRACE_SOFT_MODE, or MILLRACE_WIRE");
    }
    if (attributes.path_mtu > wire.mtu()) {
        refuse("packets of " + std::to_string(128U << attributes.path_mtu) +
                   " bytes do not fit through the interface, which takes " +
                   std::to_string(128U << wire.mtu()),
               "choose path_mtu as ibv_query_port's active_mtu says");
    }
    const auto source = gid_at(attributes.ah_attr.grh.sgid_index);
    const bool global = attributes.ah_attr.is_global != 0;
    if (global && (!source || udp_address_of(source->gid) != wire.own())) {
        refuse("GID index " + std::to_string(attributes.ah_attr.grh.sgid_index) +
                   " is not the wire's address " + describe(wire.own()),
               "choose the index of that address in ibv_devinfo -v");
    }
    for (ibv_cq* const cq : {send_cq, recv_cq}) static_cast<CompletionQueue*>(cq)->look_at_wire();
    const bool light = process.node().membarrier();
    SendSide* side = nullptr;
    {
        const auto held = sends.hold();
        set_asymmetric(held, light);
        side = &sends(held);
    }
    const Connected::Of of{wire,
                           *to,
                           {block, end, side->pending, counters, process.node(), light},
                           {block, end, run_counters, process.node(), light}};
    return std::make_unique<Connected>(of, std::make_unique<OwnerOnWire>(*this));
}

void QueuePair::take_transport(SendHeld held, std::unique_ptr<Transport> transport) noexcept {
    carried_.store(transport != nullptr && datagram == nullptr, std::memory_order_relaxed);
    sends(held).transport = std::move(transport);
}

void QueuePair::look_after_arrival(SendHeld held) noexcept {
    if (!sends(held).ending.begun() && !take_failures(held) && draining_) finish_draining(held);
}

void QueuePair::leave_wire() noexcept {
    std::unique_ptr<Transport> gone;
    {
        const auto held = sends.hold();
        gone.swap(held->transport);
        carried_.store(false, std::memory_order_relaxed);
    }
    // Ends without the lock, which what arrives waits for.
}

}  // namespace millrace::soft
