// What the program receives: asynchronously, by read_some, and where it lies in the ring.
#include "socket_core.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "millrace/base/detail/copy_bytes.hpp"

namespace millrace::stream {

using base::Status;

Status Socket::Core::receive(std::span<std::byte> into, const Slice* slice, std::uint64_t id,
                             ReceiveFlags flags) {
    if (into.empty()) return Status::empty;
    if (into.size() > longest_operation) return Status::too_large;
    if (open_receives == options.receives || !prepare_to_receive()) return Status::full;
    if (connection->is_broken() && end.ended() == Status::closed && !end.is_closed()) {
        // It ends as one that was there when the peer closed: nobody has to know which came first.
        act();
        ++open_receives;
        completions.push({Completion::Kind::receive, Status::closed, id, 0});
        tell_loop();
        return Status::ok;
    }
    if (!connection->is_broken() && comes_behind_a_read()) [[unlikely]]
        refuse_behind_a_read();
    if (lending.is_landed) [[unlikely]]
        lending.is_passed = true;
    std::size_t least = options.tuning.least_advertised;
    if (slice == nullptr) [[unlikely]] {
        if (options.registered_only) refuse_plain("receive");
        if (!keeps_receives()) least = options.tuning.least_advertised_plain;
    }
    const bool advertised = mode == Mode::direct || (mode == Mode::dynamic && into.size() >= least);
    const bool wait_all = flags == ReceiveFlags::wait_all;
    Status status = Status::ok;
    if (slice != nullptr) [[likely]] {
        status = start_receive(into, slice->rkey(), slice->hold(), id, advertised, wait_all, false);
    } else if (advertised && !connection->is_broken()) {
        const auto region = registered(into, verbs::Access::remote_write, keeps_receives());
        status = start_receive(into, region->rkey(), region, id, advertised, wait_all, false);
    } else {
        status = start_receive(into, 0, nullptr, id, advertised, wait_all, false);
    }
    if (status != Status::ok) return status;
    ++open_receives;
    if (takes_receives_lines) {
        // What has come and was not taken yet is in the program's turns, too.
        most_in_turns = std::max(open_receives * into.size(), most_in_turns - most_in_turns / 64);
        if (advertised) take_lines_of_receive(into);
    }
    step();
    tell_loop();
    return Status::ok;
}

/// Before it is advertised: the program has just read what it had, and the peer writes there next.
void Socket::Core::take_lines_of_receive(std::span<std::byte> into) noexcept {
    const Receiver& receiver = connection->receiver();
    if (into.size() < least_taken_bytes || most_in_turns > base::most_taken_bytes() ||
        is_indirect(receiver.phase()) || receiver.is_last_lent_twice()) {
        return;
    }
    base::take_lines(into.data(), into.size());
    counts.taken_bytes += into.size();
}

bool Socket::Core::prepare_to_receive() noexcept {
    if (!receives.empty()) [[likely]]
        return true;
    // One more than the program may have: read_some's.
    const std::size_t count = std::size_t{options.receives} + 1;
    if (!connection->prepare_to_receive() || !completions.prepare() ||
        !resize(free_receives, count)) {
        return false;
    }
    std::iota(free_receives.begin(), free_receives.end(), std::uint32_t{0});
    return resize(receives, count);
}

Status Socket::Core::start_receive(std::span<std::byte> into, std::uint32_t rkey,
                                   const RegistrationCache::Held& region, std::uint64_t id,
                                   bool advertised, bool wait_all, bool is_internal) {
    if (connection->is_broken()) return end.ended();
    const std::uint32_t index = free_receives.back();
    Receive& receive = receives[index];
    const Status status =
        connection->receive({.id = index,
                             .address = reinterpret_cast<std::uint64_t>(into.data()),
                             .length = into.size(),
                             .key = rkey,
                             .wait_all = wait_all,
                             .advertised = advertised});
    if (status != Status::ok) return outcome(status);
    is_quiet = false;
    free_receives.pop_back();
    receive.id = id;
    receive.data = into.data();
    receive.is_used = true;
    receive.is_internal = is_internal;
    receive.region = region;
    if (is_internal) reader.receive = index;
    return Status::ok;
}

Status Socket::Core::cancel(std::uint64_t id) noexcept {
    step();
    Status status = Status::empty;
    for (std::uint32_t index = 0; index < receives.size(); ++index) {
        const Receive& receive = receives[index];
        if (!receive.is_used || receive.is_internal || receive.id != id) continue;
        status = connection->cancel(index);
        break;
    }
    act();
    tell_loop();
    return status;
}

/// Of read_some: what comes goes to `into`, or where the peer, or a later call, may write to.
Status Socket::Core::start_read(std::span<std::byte> into) {
    if (!prepare_to_receive()) return Status::empty;
    Status status = Status::ok;
    if (mode == Mode::direct) {
        if (landing == nullptr) {
            landing =
                std::make_unique<verbs::RegisteredBuffer>(end.link().protection_domain().allocate(
                    landing_bytes, verbs::Access::remote_write));
        }
        reader.landed = landing->data();
        status = start_receive({landing->data(), landing->size()}, landing->region().rkey(),
                               nullptr, 0, true, false, true);
    } else {
        reader.landed = nullptr;
        status = start_receive(into, 0, nullptr, 0, false, false, true);
    }
    reader.is_open = status == Status::ok;
    reader.result.reset();
    return status;
}

/// What comes next, or has come, lies where only a reader finds it: in memory of the socket's own.
/// A receive now would have what is behind that.
bool Socket::Core::comes_behind_a_read() const noexcept {
    if (reader.landed == nullptr || lending.is_out) return false;
    if (!reader.is_open) return reader.landed_size != 0;
    return !reader.result.has_value() || reader.result->status == Status::ok ||
           reader.result->status == Status::too_large;
}

Status Socket::Core::read_some(std::span<std::byte> into, std::size_t& size) {
    size = 0;
    if (into.empty()) return Status::empty;
    if (lending.is_out) return Status::full;
    if (reads_ring()) [[likely]]
        return read_ring(into, size);
    if (reader.landed_size == 0 && !reader.is_open) {
        const Status status = start_read(into);
        if (status != Status::ok) return status;
    }
    look();
    Status status = Status::ok;
    if (reader.is_open) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
        if (reader.landed == nullptr) {
            size = reader.result->length;
            return status;
        }
    }
    size = std::min(into.size(), reader.landed_size);
    if (size != 0) base::copy_bytes(into.data(), reader.landed, size);
    reader.landed += size;
    reader.landed_size -= size;
    if (keeps_messages() && reader.landed_size != 0) {
        // A reader has one message, and what of it there is room for.
        reader.landed_size = 0;
        status = Status::too_large;
    }
    return status;
}

/// Nothing is before what a reader wants, and it comes through the ring: no receive is needed.
bool Socket::Core::reads_ring() const noexcept {
    return mode != Mode::direct && !keeps_messages() && !reader.is_open &&
           reader.landed_size == 0 && connection->receiver().outstanding() == 0;
}

/// `empty`: nothing has come.
Status Socket::Core::read_ring(std::span<std::byte> into, std::size_t& size) noexcept {
    // What has come is taken before act(), which then has the room to tell of at once.
    take_in();
    Lent found;
    // Twice, where the ring ends in between.
    while (size < into.size() && connection->lend(found)) {
        const std::size_t length = std::min<std::size_t>(into.size() - size, found.length);
        base::copy_bytes(into.data() + size, memory.data() + found.ring_offset, length);
        take_ring_lines(found.ring_offset, length);
        connection->give_back(length, true);
        size += length;
    }
    if (size != 0) {
        act();
        return Status::ok;
    }
    look();
    if (connection->receiver().finished()) return Status::closed;
    return connection->is_broken() ? end.ended() : Status::empty;
}

/// `empty`: it goes on. Otherwise what came is in `reader`, and its landed_size, if it landed
/// elsewhere.
Status Socket::Core::end_reading() noexcept {
    if (!reader.result.has_value()) return Status::empty;
    reader.is_open = false;
    const Status status = reader.result->status;
    const bool has_come = status == Status::ok || status == Status::too_large;
    if (has_come && reader.landed != nullptr) reader.landed_size = reader.result->length;
    return status;
}

Status Socket::Core::read_zero_copy(View& view) {
    view = {};
    if (!lending.is_out || !lending.is_landed) {
        if (mode == Mode::direct && reader.landed_size == 0 && !reader.is_open) {
            const Status status = start_read({});
            if (status != Status::ok) return status;
        }
        look();
        const Status status =
            reader.is_open || reader.landed_size != 0 ? lend_landed() : lend_ring();
        if (status != Status::ok && status != Status::too_large) return status;
        lending.status = status;
        lending.is_out = true;
    }
    view = lending.view;
    return lending.status;
}

/// What is where the peer, or a reader that has gone, had it put.
Status Socket::Core::lend_landed() noexcept {
    Status status = Status::ok;
    if (reader.is_open) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
    }
    lending.is_landed = true;
    lending.view = {{reader.landed, reader.landed_size}, keeps_messages()};
    return status;
}

Status Socket::Core::lend_ring() noexcept {
    Lent found;
    if (connection->lend(found)) {
        lending.is_landed = false;
        lending.view = {{memory.data() + found.ring_offset, found.length}, found.ends_message};
        return Status::ok;
    }
    if (connection->receiver().finished()) return Status::closed;
    return connection->is_broken() ? end.ended() : Status::empty;
}

Status Socket::Core::release(std::size_t size) noexcept {
    if (!lending.is_out) return Status::empty;
    if (size > lending.view.bytes.size()) return Status::too_large;
    if (lending.is_landed && lending.is_passed && size < reader.landed_size) return Status::full;
    lending.is_out = false;
    if (lending.is_landed) {
        reader.landed += size;
        reader.landed_size -= size;
        lending.is_landed = lending.is_passed = false;
    } else {
        take_ring_lines(static_cast<std::uint64_t>(lending.view.bytes.data() - memory.data()),
                        size);
        connection->give_back(size);
        is_quiet = false;
        step();
    }
    tell_loop();
    return Status::ok;
}

void Socket::Core::end_read(std::span<std::byte> into) noexcept {
    // What lies elsewhere stays lent, and the next read takes what comes.
    if (!reader.is_open || reader.landed != nullptr) return;
    if (keeps_messages()) {
        const std::uint64_t begun = connection->receiver().filled(reader.receive);
        if (begun != 0) {
            // The beginning of a message, whose rest comes when `into` is gone.
            try {
                reader.kept.assign(into.begin(), into.end());
                receives[reader.receive].data = reader.landed = reader.kept.data();
            } catch (const std::bad_alloc&) {
                break_off_because([] {
                    return std::string{"there is no memory for the beginning of a message"};
                });
                connection->break_off();
                act();
                reader.is_open = false;
            }
            return;
        }
    }
    (void)connection->cancel(reader.receive);
    act();
    reader.is_open = false;
}

}  // namespace millrace::stream
