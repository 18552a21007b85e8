// Socket: the public calls, over the state of socket_core.hpp.
#include "millrace/stream/socket.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/error.hpp"
#include "socket_core.hpp"

namespace millrace::stream {

namespace {

using base::Status;

/// Waits until `attempt()` answers something else than `again`.
template <class Attempt>
Status wait_for(Socket::Core& core, Status again, const base::Deadline& deadline,
                Attempt&& attempt) {
    return core.end.wait_while(again, attempt, deadline, core.options.wait);
}

/// Asks `attempt()`; where it answers `again`, the descriptor is quiet until there is news. Who
/// looks for something else is told of what the attempt came upon, before that.
template <class Attempt>
[[gnu::noinline]] Status try_or_rest(Socket::Core& core, Socket::Core::Awaited what, Status again,
                                     Attempt& attempt) {
    core.end.end_rest();
    Status status = again;
    const auto finds = [&] {
        status = attempt();
        if (status == again && core.end.ended() == Status::ok) {
            core.look_around();
            if (core.end.ended() != Status::ok) status = attempt();
        }
        return status != again;
    };
    try {
        if (finds()) {
            core.end.wake();
        } else if (!core.end.stays_awake(core.activity())) {
            if (core.owes_news(what)) {
                core.settle_news();
                core.end.wake();
            } else {
                core.end.rest([&] { return finds() || core.owes_news(what); });
            }
        }
    } catch (...) {
        core.end.wake();
        throw;
    }
    core.note_search(what, status == again);
    return status;
}

template <class Attempt>
Status try_now(Socket::Core& core, Socket::Core::Awaited what, Status again, Attempt&& attempt) {
    if (!core.end.has_descriptor()) [[likely]]
        return attempt();
    return try_or_rest(core, what, again, attempt);
}

/// `full`: something of this side has not reached the peer's memory yet.
Status deliver(Socket::Core& core) {
    core.look();
    if (core.end.ended() == Status::ok) return core.all_delivered() ? Status::ok : Status::full;
    // What was delivered is, though the peer has let go of its end since.
    const bool is_true = core.connection->violation() == Violation::none;
    return is_true && core.all_delivered() ? Status::ok : core.end.ended();
}

void begin_close(Socket::Core& core) {
    // A peer that has gone takes nothing more; one that closed says how far it has read.
    if (core.end.ended() == Status::ok && core.end.peer_now() != Status::ok) core.end_by_peer();
    core.shut_down();
}

/// After close(), whatever it answered.
Status end_close(Socket::Core& core, Status status) {
    if (!core.end.is_closed()) return status;
    core.break_off(Status::closed);
    core.connection->break_off();
    core.act();
    core.show();
    core.end.end_rest();
    core.end.wake();
    return status;
}

[[noreturn]] [[gnu::cold]] void refuse_thread(const Socket::Core& core) {
    base::refuse_second_thread(
        "use a byte stream", fmt::format("peer {}", core.end.link().peer_name()),
        "let one thread at a time use a socket, or give each direction a socket");
}

/// A call is under way. Throws Error (invalid_argument): in another thread, too.
class [[nodiscard]] Call {
  public:
    explicit Call(Socket::Core& core) : use_{core.use} {
        if (core.is_copy) [[unlikely]]
            core.end_copy();
        if (!use_.try_enter()) refuse_thread(core);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { use_.leave(); }

  private:
    base::SoleUse& use_;
};

}  // namespace

Socket::Socket(std::unique_ptr<Core> core) noexcept : core_{std::move(core)} {}
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;

connect::Link& Socket::link() noexcept { return core_->end.link(); }
const std::string& Socket::peer_name() const noexcept { return core_->end.link().peer_name(); }
std::string Socket::failure() const {
    const Call call{*core_};
    return core_->end.failure();
}

// --- operations

Status Socket::send(Slice from, std::uint64_t id, SendFlags flags) {
    const Call call{*core_};
    return core_->send(from.bytes(), core_->if_registered_here(from), id, flags);
}
Status Socket::send(std::span<const std::byte> from, std::uint64_t id, SendFlags flags) {
    const Call call{*core_};
    return core_->send(from, nullptr, id, flags);
}
Status Socket::receive(Slice into, std::uint64_t id, ReceiveFlags flags) {
    const Call call{*core_};
    return core_->receive(into.bytes(), core_->if_registered_here(into), id, flags);
}
Status Socket::receive(std::span<std::byte> into, std::uint64_t id, ReceiveFlags flags) {
    const Call call{*core_};
    return core_->receive(into, nullptr, id, flags);
}
Status Socket::cancel(std::uint64_t id) {
    const Call call{*core_};
    return core_->cancel(id);
}

Status Socket::poll(Completion& completion) {
    Core& core = *core_;
    const Call call{core};
    if (core.take(completion)) return Status::ok;
    return try_now(core, Core::Awaited::completion, Status::empty,
                   [&] { return core.look_for(completion); });
}

std::size_t Socket::poll(std::span<Completion> completions) {
    std::size_t count = 0;
    while (count < completions.size() && poll(completions[count]) == Status::ok) ++count;
    return count;
}

Status Socket::wait(Completion& completion, const base::Deadline& deadline) {
    Core& core = *core_;
    const Call call{core};
    if (core.take(completion)) return Status::ok;
    if (!core.has_operations()) return Status::empty;
    return wait_for(core, Status::empty, deadline, [&] { return core.look_for(completion); });
}

std::uint64_t Socket::outstanding() const {
    const Call call{*core_};
    return core_->open_sends + core_->open_receives;
}

int Socket::descriptor() {
    Core& core = *core_;
    const Call call{core};
    return core.end.descriptor(core.options.wait.spin);
}

// --- convenience

Status Socket::read_some(std::span<std::byte> into, std::size_t& size,
                         const base::Deadline& deadline) {
    Core& core = *core_;
    const Call call{core};
    size = 0;
    if (into.empty()) return Status::empty;
    const Status status =
        wait_for(core, Status::empty, deadline, [&] { return core.read_some(into, size); });
    if (status == Status::timed_out || status == Status::cancelled) core.end_read(into);
    core.tell_loop();
    return status;
}

Status Socket::try_read_some(std::span<std::byte> into, std::size_t& size) {
    Core& core = *core_;
    const Call call{core};
    size = 0;
    if (into.empty()) return Status::empty;
    const Status status = try_now(core, Core::Awaited::bytes, Status::empty,
                                  [&] { return core.read_some(into, size); });
    if (status == Status::empty) core.end_read(into);
    core.tell_loop();
    return status;
}

Status Socket::read_zero_copy(View& view, const base::Deadline& deadline) {
    Core& core = *core_;
    const Call call{core};
    const Status status =
        wait_for(core, Status::empty, deadline, [&] { return core.read_zero_copy(view); });
    core.tell_loop();
    return status;
}

Status Socket::try_read_zero_copy(View& view) {
    Core& core = *core_;
    const Call call{core};
    const Status status = try_now(core, Core::Awaited::bytes, Status::empty,
                                  [&] { return core.read_zero_copy(view); });
    core.tell_loop();
    return status;
}

Status Socket::release(std::size_t size) {
    const Call call{*core_};
    return core_->release(size);
}

Status Socket::try_write_some(std::span<const std::byte> from, std::size_t& size) {
    Core& core = *core_;
    const Call call{core};
    const Status status = try_now(core, Core::Awaited::room, Status::full,
                                  [&] { return core.write_some(from, size); });
    core.tell_loop();
    return status;
}

Status Socket::write_some(std::span<const std::byte> from, std::size_t& size,
                          const base::Deadline& deadline) {
    const Call call{*core_};
    const Status status =
        wait_for(*core_, Status::full, deadline, [&] { return core_->write_some(from, size); });
    core_->tell_loop();
    return status;
}

Status Socket::write_all(std::span<const std::byte> from, const base::Deadline& deadline) {
    for (;;) {
        std::size_t size = 0;
        if (from.empty() && core_->options.type == Type::stream) return Status::ok;
        const Status status = write_some(from, size, deadline);
        if (status != Status::ok) return status;
        if (size == from.size()) return Status::ok;
        from = from.subspan(size);
    }
}

// --- the end

void Socket::shut_down() {
    const Call call{*core_};
    core_->shut_down();
}

Status Socket::close(const base::Deadline& deadline) {
    Core& core = *core_;
    const Call call{core};
    begin_close(core);
    const Status status =
        core.end.close([&] { return deliver(core); }, [&] { return core.peer_had_all(); },
                       [&] { return core.arrived(); }, deadline, core.options.wait);
    return end_close(core, status);
}

Status Socket::try_close() {
    Core& core = *core_;
    const Call call{core};
    begin_close(core);
    const Status status = try_now(core, Core::Awaited::end, Status::full, [&] {
        return core.end.try_close([&] { return deliver(core); },
                                  [&] { return core.peer_had_all(); },
                                  [&] { return core.arrived(); });
    });
    return end_close(core, status);
}

// --- facts

SocketStats Socket::stats() const {
    const Call call{*core_};
    core_->show();
    return core_->stats();
}

std::string Socket::explain() const {
    const Core& core = *core_;
    std::string bytes;
    switch (core.mode) {
        case Mode::dynamic:
            bytes = fmt::format(
                "straight into receives of {} bytes and more ({} in plain memory) whose "
                "advertisement came in time, up to {} of them; otherwise through the ring",
                core.options.tuning.least_advertised,
                core.options.tuning.least_advertised_plain == Socket::Core::none_is_advertised
                    ? std::string{"none"}
                    : std::to_string(core.options.tuning.least_advertised_plain),
                core.options.adverts);
            break;
        case Mode::direct:
            bytes = fmt::format("straight into receives, of which {} are advertised at a time",
                                core.options.adverts);
            break;
        case Mode::indirect: bytes = "through the ring"; break;
    }
    const std::string carried =
        core.stores ? "messages and bytes for the ring are stored where the peer reads them; what "
                      "goes straight into a receive is one WRITE, and one for its message unless "
                      "the device has carried that out at once"
        : core.in_order
            ? "one WRITE for bytes and one for a message"
            : "one WRITE for bytes and two for a message, as the device does not promise that the "
              "bytes of one WRITE become visible in order";
    return fmt::format(
        "{}\nbyte stream{}: mode {}: bytes go {}; {} bytes of ring to receive into, {} to send "
        "into{}\ncarrier: {}, because {}; {}",
        core.end.link().explain(), core.options.type == Type::seqpacket ? " of messages" : "",
        name_of(core.mode), bytes, core.mode == Mode::direct ? 0 : core.options.ring_bytes,
        core.at_peer.ring_bytes,
        core.is_sized ? fmt::format("\nsizes not asked for are of {}", reason(core.way)) : "",
        core.stores ? "store" : "post", core.carrier.reason(), carried);
}

}  // namespace millrace::stream
