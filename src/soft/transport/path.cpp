#include "transport/path.hpp"

namespace millrace::soft {

void describe_path(PathLine& line, const ibv_qp_attr& attributes, bool leads_to_port) noexcept {
    line.receive_psn.store(attributes.rq_psn, std::memory_order_relaxed);
    line.send_psn.store(attributes.sq_psn, std::memory_order_relaxed);
    line.mtu.store(128U << attributes.path_mtu, std::memory_order_relaxed);
    line.leads_to_port.store(leads_to_port ? 1 : 0, std::memory_order_relaxed);
}

Reason compare_paths(const PathLine& sender, const PathLine& receiver, bool reliable) noexcept {
    const auto of = [](const std::atomic<std::uint32_t>& word) {
        return word.load(std::memory_order_relaxed);
    };
    if (of(sender.leads_to_port) == 0) return {ReasonKind::senders_address};
    if (reliable && of(receiver.leads_to_port) == 0) return {ReasonKind::receivers_address};
    if (reliable && of(sender.send_psn) != of(receiver.receive_psn)) {
        return {ReasonKind::other_psn, of(sender.send_psn), of(receiver.receive_psn)};
    }
    if (of(sender.mtu) != of(receiver.mtu)) {
        return {ReasonKind::other_mtu, of(sender.mtu), of(receiver.mtu)};
    }
    return {};
}

}  // namespace millrace::soft
