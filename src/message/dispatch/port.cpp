// Port: a thread's side of a dispatcher. The layout, and which side writes what: port_state.hpp.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dispatch/port_state.hpp"
#include "dispatch/turn_of_port.hpp"
#include "memory.hpp"
#include "millrace/message/detail/in_place.hpp"
#include "millrace/message/dispatcher.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;
using detail::PortOwn;
using detail::PortState;

namespace {

class PortSleeper final : public base::Parker {
  public:
    explicit PortSleeper(base::ThreadBell& bell) noexcept : bell_{&bell} {}
    void prepare() override { bell_->announce(); }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
        bell_->sleep(limit, cancellation);
    }
    void retract() override { bell_->retract(); }

  private:
    base::ThreadBell* bell_;
};

void be_readable(PortOwn& port) noexcept {
    port.is_armed = false;
    port.bell.announce();
    port.bell.ring();
}

/// Waits for what `attempt()` answers, as long as that is `again`.
template <class Attempt>
Status wait_for(PortOwn& port, Status again, const Deadline& deadline, Attempt&& attempt) {
    Status status = attempt();
    if (status != again) return status;
    const base::WaitPolicy& policy = port.options.wait;
    if (policy.sleep && policy.spin.count() == 0 && policy.yield.count() == 0) {
        status = offer_before_sleep(port, again, deadline, attempt);
        if (status != again) return status;
    }
    PortSleeper sleeper{port.bell};
    const Status waited = base::wait_until(
        [&] {
            status = attempt();
            if (status == again && detail::take_turn_of_dispatcher(*port.gate)) status = attempt();
            return status != again;
        },
        deadline, policy, sleeper);
    // The sleeper has used the bell: a loop that watches it looks once more.
    if (port.is_watched) be_readable(port);
    return waited == Status::ok ? status : waited;
}

void free_place(PortOwn& port, std::uint32_t index) noexcept {
    PortState::Place& place = port.places[index];
    place.call = PortState::Call::none;
    port.free.push_back(index);
    clear_keeping(place.answer, PortState::longest_kept);
    clear_keeping(place.longer, PortState::longest_kept);
}

/// Of what came too late for the dispatcher to take, nobody but this port knows.
void end_here(PortOwn& port, std::uint64_t end) {
    for (; port.submitted != end; --port.submitted) {
        const std::uint32_t index = port.requests[(port.submitted - 1) & port.mask];
        const PortState::Place& place = port.places[index];
        if (place.call == PortState::Call::wanted) {
            port.kept.keep_as_oldest(place.id, Outcome::closed);
            --port.wanted;
        }
        free_place(port, index);
    }
}

/// The next answer that lies in its place. `empty`; `closed`: no more will, see `kept`.
Status look_at_places(PortOwn& port, Answer& answer) {
    bool has_ended = false;
    while (true) {
        if (port.handed == port.answered.load(std::memory_order_seq_cst)) {
            const std::uint64_t end = port.taken_at_end.load(std::memory_order_seq_cst);
            if (end == PortState::not_ended) return Status::empty;
            // What was answered before the end was published before it, too.
            if (!std::exchange(has_ended, true)) continue;
            end_here(port, end);
            return Status::closed;
        }
        const std::uint32_t index = port.answers[port.handed & port.mask];
        const PortState::Place& place = port.places[index];
        if (place.call == PortState::Call::wanted) {
            answer = {place.id, place.outcome, place.answer};
            return Status::ok;
        }
        free_place(port, index);
        ++port.handed;
    }
}

/// The descriptor is readable while a poll may find something: it is armed by the first poll that
/// finds nothing, and disarmed by the next one that does.
Status watch(PortOwn& port, Status status, Answer& answer) {
    if (status == Status::empty) {
        // What it was rung for may have been taken before it was armed.
        const std::uint64_t rings = port.rings.load(std::memory_order_acquire);
        if (port.is_armed && port.armed_at == rings) return status;
        port.bell.retract();
        port.bell.announce();
        port.armed_at = rings;
        port.is_armed = true;
        status = look_at_places(port, answer);
    }
    if (status != Status::empty && std::exchange(port.is_armed, false)) be_readable(port);
    return status;
}

void pass_place(PortOwn& port, std::uint32_t index) noexcept {
    --port.wanted;
    ++port.handed;
    free_place(port, index);
}

void keep(PortOwn& port, const Answer& answer) {
    const std::uint32_t index = PortState::place_of(answer.id);
    port.kept.keep(answer.id, answer.outcome, std::exchange(port.places[index].answer, {}));
    pass_place(port, index);
}

Status look_at_kept(PortOwn& port, std::size_t index, Answer& answer) noexcept {
    port.kept_index = index;
    answer = port.kept.at(index);
    return Status::ok;
}

bool finds_kept(PortOwn& port, std::uint64_t id, Answer& answer) noexcept {
    const std::size_t index = port.kept.find(id);
    return index != port.kept.size() && look_at_kept(port, index, answer) == Status::ok;
}

/// Publishes to the dispatcher what was stored sequentially consistent.
void tell(PortOwn& port) noexcept { port.gate->bell.ring(); }

}  // namespace

Port::Port(std::shared_ptr<PortOwn> state) noexcept : state_{std::move(state)} {}
Port::Port(Port&&) noexcept = default;
Port& Port::operator=(Port&& other) noexcept {
    if (this != &other) {
        leave();
        state_ = std::move(other.state_);
    }
    return *this;
}
Port::~Port() { leave(); }

void Port::leave() noexcept {
    if (state_ == nullptr) return;
    state_->has_left.store(true, std::memory_order_seq_cst);
    tell(*state_);
    state_.reset();
}

void Port::to(std::uint32_t server) noexcept { state_->server = server; }
std::uint32_t Port::servers() const noexcept {
    return static_cast<std::uint32_t>(state_->gate->servers.load(std::memory_order_acquire));
}

Status Port::claim(std::size_t size, std::span<std::byte>& room) {
    PortOwn& port = *state_;
    if (port.is_copy) return Status::peer_lost;
    if (port.gate->is_closed.load(std::memory_order_acquire)) return Status::closed;
    const Status ended = port.gate->ended[port.server].load(std::memory_order_acquire);
    if (ended != Status::ok) return ended;
    // Beyond what any server takes.
    if (size > std::size_t{1} << 31) return Status::too_large;
    if (port.free.empty()) {
        // What is not wanted any more, and has come, frees its place here.
        Answer next;
        (void)look_at_places(port, next);
        if (port.free.empty()) return Status::full;
    }
    port.claimed = port.free.back();
    PortState::Place& place = port.places[port.claimed];
    port.claimed_id = place.id;
    place.is_long = size > port.options.request_bytes;
    if (place.is_long) {
        place.longer.resize(size);
        room = place.longer;
    } else {
        room = {place.memory, size};
    }
    return Status::ok;
}

Status Port::claim(std::size_t size, std::span<std::byte>& room, const Deadline& deadline) {
    return wait_for(*state_, Status::full, deadline, [&] {
        Status status = claim(size, room);
        // Answers are what makes room in a window.
        Answer answer;
        while (status == Status::full && look_at_places(*state_, answer) == Status::ok) {
            keep(*state_, answer);
            status = claim(size, room);
        }
        return status;
    });
}

Status Port::commit(std::size_t size, std::uint64_t& id, const RequestOptions& options) {
    PortOwn& port = *state_;
    if (!port.is_claimed()) [[unlikely]]
        detail::refuse_nested_use("send a request that is written in place", "a port");
    const std::uint32_t index = port.free.back();
    port.free.pop_back();
    PortState::Place& place = port.places[index];
    id = place.id += largest_window;
    place.size = static_cast<std::uint32_t>(size);
    place.server = port.server;
    place.procedure = options.procedure;
    place.deadline = options.deadline;
    place.told_from = options.told_from;
    place.is_cancelled.store(false, std::memory_order_relaxed);
    place.call = PortState::Call::wanted;
    ++port.wanted;
    port.requests[port.submitted & port.mask] = index;
    port.prepared.store(++port.submitted, std::memory_order_seq_cst);
    tell(port);
    return Status::ok;
}

Status Port::submit(std::span<const std::byte> request, std::uint64_t& id,
                    const RequestOptions& options) {
    std::span<std::byte> room;
    const Status status = claim(request.size(), room);
    if (status != Status::ok) return status;
    if (!request.empty()) std::memcpy(room.data(), request.data(), request.size());
    return commit(request.size(), id, options);
}

Status Port::look(Answer& answer) {
    PortOwn& port = *state_;
    if (port.is_copy) return Status::peer_lost;
    if (!port.kept.empty()) return look_at_kept(port, 0, answer);
    Status status = look_at_places(port, answer);
    if (port.is_watched) [[unlikely]]
        status = watch(port, status, answer);
    if (status == Status::closed && !port.kept.empty()) return look_at_kept(port, 0, answer);
    if (status == Status::ok) [[likely]] {
        port.kept_index = PortOwn::in_place;
        port.current = PortState::place_of(answer.id);
    }
    return status;
}

Status Port::look(Answer& answer, const Deadline& deadline) {
    const Status status = look(answer);
    if (status != Status::empty) return status;
    if (outstanding() == 0) {
        // Every place may be that of a request whose answer is not wanted.
        return wait_for(*state_, Status::full, deadline, [&] {
            const Status found = look(answer);
            return found == Status::empty && state_->free.empty() ? Status::full : found;
        });
    }
    return wait_for(*state_, Status::empty, deadline, [&] { return look(answer); });
}

Status Port::look_for(std::uint64_t id, Answer& answer, const Deadline& deadline) {
    PortOwn& port = *state_;
    // It may have come while another one was awaited.
    if (finds_kept(port, id, answer)) return Status::ok;
    const Status status = wait_for(port, Status::empty, deadline, [&] {
        if (port.is_copy) return Status::peer_lost;
        Status found;
        while ((found = look_at_places(port, answer)) == Status::ok && answer.id != id) {
            keep(port, answer);
        }
        // The end has something to say of it.
        if (found == Status::closed && finds_kept(port, id, answer)) return Status::ok;
        if (found == Status::ok) [[likely]] {
            port.kept_index = PortOwn::in_place;
            port.current = PortState::place_of(id);
        }
        return found;
    });
    if (status != Status::ok) (void)cancel(id);
    return status;
}

namespace {
[[noreturn, gnu::noinline, gnu::cold]] void refuse_to_pass() {
    detail::refuse_nested_use("go on after an answer", "a port");
}
}  // namespace

void Port::pass() {
    PortOwn& port = *state_;
    if (!port.is_handed_out()) [[unlikely]]
        refuse_to_pass();
    const std::size_t index = std::exchange(port.kept_index, PortOwn::nothing);
    if (index == PortOwn::in_place) return pass_place(port, port.current);
    port.kept.erase(index);
}

void Port::pass_unless_gone() noexcept {
    if (state_->is_handed_out()) pass();
}

bool Port::cancel(std::uint64_t id) {
    PortOwn& port = *state_;
    if (const std::size_t kept = port.kept.find(id); kept != port.kept.size()) {
        port.kept.erase(kept);
        return true;
    }
    const std::uint32_t index = PortState::place_of(id);
    if (index >= port.places.size()) return false;
    PortState::Place& place = port.places[index];
    if (place.id != id || place.call != PortState::Call::wanted) return false;
    place.call = PortState::Call::unwanted;
    --port.wanted;
    place.is_cancelled.store(true, std::memory_order_relaxed);
    port.cancels.fetch_add(1, std::memory_order_seq_cst);
    tell(port);
    return true;
}

int Port::descriptor() {
    PortOwn& port = *state_;
    const int descriptor = port.bell.descriptor();
    if (!std::exchange(port.is_watched, true)) be_readable(port);
    return descriptor;
}

std::size_t Port::outstanding() const noexcept { return state_->wanted + state_->kept.size(); }
std::uint32_t Port::window() const noexcept { return state_->options.window; }

}  // namespace millrace::message
