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
    if (is_lent_landed) [[unlikely]]
        is_received_behind_view = true;
    std::size_t least = options.least_advertised;
    if (slice == nullptr) [[unlikely]] {
        if (options.registered_only) refuse_plain("receive");
        if (!keeps_receives()) least = options.least_advertised_plain;
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
    if (is_internal) reading = index;
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
        landed = landing->data();
        status = start_receive({landing->data(), landing->size()}, landing->region().rkey(),
                               nullptr, 0, true, false, true);
    } else {
        landed = nullptr;
        status = start_receive(into, 0, nullptr, 0, false, false, true);
    }
    is_reading = status == Status::ok;
    read_result.reset();
    return status;
}

/// What comes next, or has come, lies where only a reader finds it: in memory of the socket's own.
/// A receive now would have what is behind that.
bool Socket::Core::comes_behind_a_read() const noexcept {
    if (landed == nullptr || is_lent) return false;
    if (!is_reading) return landed_size != 0;
    return !read_result.has_value() || read_result->status == Status::ok ||
           read_result->status == Status::too_large;
}

Status Socket::Core::read_some(std::span<std::byte> into, std::size_t& size) {
    size = 0;
    if (into.empty()) return Status::empty;
    if (is_lent) return Status::full;
    if (reads_ring()) [[likely]]
        return read_ring(into, size);
    if (landed_size == 0 && !is_reading) {
        const Status status = start_read(into);
        if (status != Status::ok) return status;
    }
    look();
    Status status = Status::ok;
    if (is_reading) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
        if (landed == nullptr) {
            size = read_result->length;
            return status;
        }
    }
    size = std::min(into.size(), landed_size);
    if (size != 0) base::copy_bytes(into.data(), landed, size);
    landed += size;
    landed_size -= size;
    if (keeps_messages() && landed_size != 0) {
        // A reader has one message, and what of it there is room for.
        landed_size = 0;
        status = Status::too_large;
    }
    return status;
}

/// Nothing is before what a reader wants, and it comes through the ring: no receive is needed.
bool Socket::Core::reads_ring() const noexcept {
    return mode != Mode::direct && !keeps_messages() && !is_reading && landed_size == 0 &&
           connection->receiver().outstanding() == 0;
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

/// `empty`: it goes on. Otherwise what came is in read_result, and landed_size, if it landed
/// elsewhere.
Status Socket::Core::end_reading() noexcept {
    if (!read_result.has_value()) return Status::empty;
    is_reading = false;
    const Status status = read_result->status;
    const bool has_come = status == Status::ok || status == Status::too_large;
    if (has_come && landed != nullptr) landed_size = read_result->length;
    return status;
}

Status Socket::Core::read_zero_copy(View& view) {
    view = {};
    if (!is_lent || !is_lent_landed) {
        if (mode == Mode::direct && landed_size == 0 && !is_reading) {
            const Status status = start_read({});
            if (status != Status::ok) return status;
        }
        look();
        const Status status = is_reading || landed_size != 0 ? lend_landed() : lend_ring();
        if (status != Status::ok && status != Status::too_large) return status;
        lent_status = status;
        is_lent = true;
    }
    view = lent;
    return lent_status;
}

/// What is where the peer, or a reader that has gone, had it put.
Status Socket::Core::lend_landed() noexcept {
    Status status = Status::ok;
    if (is_reading) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
    }
    is_lent_landed = true;
    lent = {{landed, landed_size}, keeps_messages()};
    return status;
}

Status Socket::Core::lend_ring() noexcept {
    Lent found;
    if (connection->lend(found)) {
        is_lent_landed = false;
        lent = {{memory.data() + found.ring_offset, found.length}, found.ends_message};
        return Status::ok;
    }
    if (connection->receiver().finished()) return Status::closed;
    return connection->is_broken() ? end.ended() : Status::empty;
}

Status Socket::Core::release(std::size_t size) noexcept {
    if (!is_lent) return Status::empty;
    if (size > lent.bytes.size()) return Status::too_large;
    if (is_lent_landed && is_received_behind_view && size < landed_size) return Status::full;
    is_lent = false;
    if (is_lent_landed) {
        landed += size;
        landed_size -= size;
        is_lent_landed = is_received_behind_view = false;
    } else {
        take_ring_lines(static_cast<std::uint64_t>(lent.bytes.data() - memory.data()), size);
        connection->give_back(size);
        is_quiet = false;
        step();
    }
    tell_loop();
    return Status::ok;
}

void Socket::Core::end_read(std::span<std::byte> into) noexcept {
    // What lies elsewhere stays lent, and the next read takes what comes.
    if (!is_reading || landed != nullptr) return;
    if (keeps_messages()) {
        const std::uint64_t begun = connection->receiver().filled(reading);
        if (begun != 0) {
            // The beginning of a message, whose rest comes when `into` is gone.
            try {
                kept.assign(into.begin(), into.end());
                receives[reading].data = landed = kept.data();
            } catch (const std::bad_alloc&) {
                break_off_because([] {
                    return std::string{"there is no memory for the beginning of a message"};
                });
                connection->break_off();
                act();
                is_reading = false;
            }
            return;
        }
    }
    (void)connection->cancel(reading);
    act();
    is_reading = false;
}

}  // namespace millrace::stream
