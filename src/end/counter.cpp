// CounterPush and CounterPull, see the header.
#include "millrace/end/counter.hpp"

#include <cstdint>

namespace millrace::end {

base::Status CounterPush::send(std::uint64_t value) noexcept {
    if (!window_->done(ticket_)) {
        const base::Status status = window_->reap();
        if (status != base::Status::ok) return status;
        if (!window_->done(ticket_)) return base::Status::full;
    }
    // Inline: the value is taken during the call, so it needs no registered memory.
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
    const base::Status status = window_->post(
        verbs::Write{.from = {&slice, 1}, .to = mirror_, .flags = verbs::SendFlags::inlined},
        Signal::now);
    if (status == base::Status::ok) {
        sent_ = value;
        ticket_ = window_->posted();
        ++posted_;
    }
    return status;
}

base::Status CounterPull::start() noexcept {
    if (memory_ != nullptr) {
        value_ = std::atomic_ref<std::uint64_t>{*memory_}.load(std::memory_order_acquire);
        base::heard_from_peers();
        loaded_ = true;
        return base::Status::ok;
    }
    if (pending()) return base::Status::ok;
    const base::Status status =
        window_->post(verbs::Read{.into = {&landing_, 1}, .from = source_}, Signal::now);
    if (status == base::Status::ok) {
        ticket_ = window_->posted();
        ++posted_;
    }
    return status;
}

bool CounterPull::poll() noexcept {
    if (loaded_) {
        loaded_ = false;
        return true;
    }
    if (!pending() || !window_->done(ticket_)) return false;
    ticket_ = 0;
    value_ = std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(landing_.addr)}.load(
        std::memory_order_acquire);
    return true;
}

}  // namespace millrace::end
