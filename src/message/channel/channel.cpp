// Channel: the public calls, over the state of channel_core.hpp.
#include "millrace/message/channel.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "channel/channel_core.hpp"
#include "channel/pieces.hpp"

namespace millrace::message {

void detail::refuse_nested_use(const char* attempted, const std::string& peer) {
    throw base::Error{base::ErrorCode::invalid_argument, attempted, peer,
                      "the callable that it was handed to has used the same end, and the place is "
                      "gone",
                      "make other calls before or behind this one, not within its callable"};
}

namespace {

/// Memory of a message that was put together stays for the next one, if it is no larger.
constexpr std::size_t longest_kept = std::size_t{1} << 20;

/// Waits until `is_over()`. Of a call that is the only one.
template <class IsOver>
base::Status wait_alone(Channel::Core& core, const base::Deadline& deadline, IsOver&& is_over) {
    core.end_rest();
    const base::Status waited = core.end.wait(is_over, deadline, core.options.wait);
    core.falls_asleep = false;
    return waited;
}
/// The same, until `attempt()` answers something else than `again`.
template <class Attempt>
base::Status wait_alone_for(Channel::Core& core, base::Status again, const base::Deadline& deadline,
                            Attempt&& attempt) {
    base::Status status = base::Status::ok;
    const base::Status waited = wait_alone(core, deadline, [&] {
        status = attempt();
        return status != again;
    });
    return waited == base::Status::ok ? status : waited;
}

/// Waits for a message, behind a look that was vain: by looks at the place of the next frame alone,
/// as long as these are enough.
template <class Attempt>
base::Status wait_in_quiet(Channel::Core& core, const base::Deadline& deadline, Attempt&& attempt) {
    const base::SoleCall call{core.use, "wait in a channel", core.link().peer_name()};
    return wait_alone_for(core, base::Status::empty, deadline,
                          [&] { return core.stays_quiet() ? base::Status::empty : attempt(); });
}

/// Only once an attempt was vain it is seen to that no other thread waits or closes.
template <class Attempt>
base::Status wait_for_room(Channel::Core& core, const base::Deadline& deadline, Attempt&& attempt) {
    base::Status status = attempt();
    if (status != base::Status::full) return status;
    const base::SoleCall call{core.use, "wait in a channel", core.link().peer_name()};
    core.waiting_for_room = true;
    status = wait_alone_for(core, base::Status::full, deadline, attempt);
    core.waiting_for_room = false;
    core.wants_room = false;
    return status;
}

base::Status finish_alone(Channel::Core& core, const base::Deadline& deadline) {
    if (core.closed_by_us) return base::Status::ok;
    core.waiting_for_room = true;
    base::Status status = core.send_close();
    if (status == base::Status::full) {
        status =
            wait_alone_for(core, base::Status::full, deadline, [&] { return core.send_close(); });
    }
    core.waiting_for_room = false;
    core.wants_room = false;
    return status;
}

}  // namespace

Channel::Channel(std::unique_ptr<Core> core) noexcept : core_{std::move(core)} {}
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

std::size_t Channel::max_piece() const noexcept { return core_->writer.max_length(); }
connect::Link& Channel::link() noexcept { return core_->link(); }
const std::string& Channel::peer() const noexcept { return core_->link().peer_name(); }
std::string Channel::failure() const { return core_->failure(); }

// --- sending

base::Status Channel::claim(std::size_t size, std::span<std::byte>& room) noexcept {
    return core_->claim(size, room);
}

base::Status Channel::claim(std::size_t size, std::span<std::byte>& room,
                            const base::Deadline& deadline) {
    return wait_for_room(*core_, deadline, [&] { return core_->claim(size, room); });
}

base::Status Channel::commit(std::size_t size) {
    if (!core_->is_claimed()) [[unlikely]]
        detail::refuse_nested_use("send a message that is written in place", peer());
    return core_->commit(size, frame_whole);
}

base::Status Channel::try_send(std::span<const std::byte> message) noexcept {
    Core& core = *core_;
    const base::Status status = core.reserve(message.size());
    if (status != base::Status::ok) [[unlikely]]
        return status;
    return core.send(message, frame_whole);
}

base::Status Channel::send(std::span<const std::byte> message, const base::Deadline& deadline) {
    base::Status status = try_send(message);
    if (status == base::Status::full) {
        status = wait_for_room(*core_, deadline, [&] { return try_send(message); });
    }
    if (status != base::Status::too_large) return status;
    return send_in_pieces(
        *core_, message,
        [&](std::size_t size, std::span<std::byte>& room) { return claim(size, room, deadline); },
        [&](std::size_t size, std::uint8_t flags) { return core_->commit(size, flags); });
}

base::Status Channel::finish(const base::Deadline& deadline) {
    const base::SoleCall call{core_->use, "finish a channel", core_->link().peer_name()};
    return finish_alone(*core_, deadline);
}

base::Status Channel::close(const base::Deadline& deadline) {
    Core& core = *core_;
    const base::SoleCall call{core.use, "close a channel", core.link().peer_name()};
    core.end_rest();
    core.begin_to_close();
    core.waiting_for_room = true;
    const base::Status status =
        core.end.close([&] { return core.deliver(); }, [&] { return core.peer_had_all(); },
                       [&] { return core.read_position(); }, deadline, core.options.wait);
    core.waiting_for_room = core.wants_room = core.falls_asleep = false;
    return core.note_closed(status);
}

// --- receiving

base::Status Channel::look(Piece& piece) noexcept {
    const base::Status status = core_->look(piece);
    core_->current = {core_->reader.position(), piece.payload.size(), piece.last};
    return status;
}

base::Status Channel::look(Piece& piece, const base::Deadline& deadline) {
    const base::Status at_once = look(piece);
    if (at_once != base::Status::empty) return at_once;
    return wait_in_quiet(*core_, deadline, [&] { return look(piece); });
}

base::Status Channel::look_whole(Piece& piece) {
    Core& core = *core_;
    if (core.assembled_whole) [[unlikely]] {
        piece = {core.assembled.bytes(), true, true};
        return base::Status::ok;
    }
    std::uint64_t passed = 0;
    while (true) {
        const base::Status status = look(piece);
        if (status != base::Status::ok) return status;
        if (piece.first && piece.last) [[likely]]
            return status;
        // What lies in front of us is at most one ring; a peer that lies may lead us round it for
        // ever. The rest of a large message is for the next call.
        if (passed > core.reader.size()) return base::Status::empty;
        const std::uint64_t begin = core.reader.position();
        const Assembly::Took took = core.assembled.take(piece.payload, piece.first, piece.last);
        core.release(piece.payload.size(), piece.last);
        passed += core.reader.position() - begin;
        if (took == Assembly::Took::too_large) return base::Status::too_large;
        if (took == Assembly::Took::whole) {
            core.assembled_whole = true;
            core.note_plain();
            piece = {core.assembled.bytes(), true, true};
            return base::Status::ok;
        }
    }
}

base::Status Channel::look_whole(Piece& piece, const base::Deadline& deadline) {
    while (true) {
        base::Status status = look_whole(piece);
        if (status != base::Status::empty) return status;
        // Each piece that comes begins the wait anew: who receives a large message is not idle.
        Piece any;
        status = look(any, deadline);
        if (status != base::Status::ok) return status;
    }
}

void Channel::release() {
    if (core_->current.at != core_->reader.position() && !core_->assembled_whole) [[unlikely]]
        detail::refuse_nested_use("give back a message that was read in place", peer());
    release_current();
}

void Channel::release_current() noexcept {
    if (core_->assembled_whole) {
        core_->assembled_whole = false;
        core_->note_plain();
        core_->assembled.clear(longest_kept);
        return;
    }
    core_->release(core_->current.bytes, core_->current.is_last);
}

base::Status Channel::receive(std::vector<std::byte>& into, const base::Deadline& deadline) {
    Piece piece;
    const base::Status status = look_whole(piece, deadline);
    if (status != base::Status::ok) return status;
    if (core_->assembled_whole) {
        core_->assembled.move_to(into);
    } else {
        into.assign(piece.payload.begin(), piece.payload.end());
    }
    release_current();
    return status;
}

base::Status Channel::copy_out(const Piece& piece, std::span<std::byte> into,
                               std::size_t& size) noexcept {
    size = piece.payload.size();
    if (size > into.size()) return base::Status::too_large;
    if (size != 0) std::memcpy(into.data(), piece.payload.data(), size);
    release_current();
    return base::Status::ok;
}

base::Status Channel::try_receive(std::span<std::byte> into, std::size_t& size) {
    // What is rarer is a last call: so that the most frequent case has no register to save.
    Core& core = *core_;
    std::uint64_t length;
    if (!core.finds_whole(into.size(), length)) return receive_any(into, size);
    size = length;
    if (length > longest_short) return core.take_long(into.data(), length);
    copy_short(into.data(), core.reader.payload(), length);
    if (core.pass_whole(length)) [[unlikely]]
        return core.tell_peer();
    return base::Status::ok;
}

base::Status Channel::receive_any(std::span<std::byte> into, std::size_t& size) {
    Piece piece;
    const base::Status status = look_whole(piece);
    return status == base::Status::ok ? copy_out(piece, into, size) : status;
}

base::Status Channel::receive(std::span<std::byte> into, std::size_t& size,
                              const base::Deadline& deadline) {
    base::Status status = try_receive(into, size);
    while (status == base::Status::empty) {
        // Each piece that comes begins the wait anew: who receives a large message is not idle.
        const std::uint64_t begin = core_->reader.position();
        bool is_piece = false;
        status = wait_in_quiet(*core_, deadline, [&] {
            const base::Status found = try_receive(into, size);
            is_piece = found == base::Status::empty && core_->reader.position() != begin;
            return is_piece ? base::Status::ok : found;
        });
        if (is_piece && status == base::Status::ok) status = base::Status::empty;
    }
    return status;
}

// --- facts

int Channel::descriptor() { return core_->end.descriptor(core_->options.wait.spin); }

void Channel::fall_asleep() {
    (void)descriptor();
    if (core_->is_unused()) core_->rest();
}

ChannelStats Channel::stats() const {
    core_->show();
    return core_->stats();
}

std::string Channel::explain() const { return core_->explain(); }

std::string Channel::Core::explain() const {
    const Core& core = *this;
    std::string how;
    if (core.stores) {
        how = "nothing is posted: a message is laid where the peer reads it";
    } else if (core.posting == Posting::send) {
        how = fmt::format(
            "one SEND per message of up to {} bytes, inline up to {} bytes of frame, into the "
            "peer's receives",
            core.max_piece(), core.max_inline);
    } else if (core.posting == Posting::one_write) {
        how = fmt::format(
            "one WRITE per message, inline up to {} bytes of frame: the bytes of one WRITE become "
            "visible in order",
            core.max_inline);
    } else {
        how = fmt::format(
            "two WRITEs per message, inline up to {} bytes: the device does not promise that the "
            "bytes of one WRITE become visible in order, so the trailer travels behind the rest",
            core.max_inline);
    }
    const std::string receives =
        !core.incoming.has_value()
            ? fmt::format("{} bytes of ring to receive into", core.reader.size())
            : fmt::format("{} receives of {} bytes {}to receive into",
                          core.options.ring_bytes / core.ways.slot_bytes, core.ways.slot_bytes,
                          core.ways.shared != nullptr ? "of a shared queue " : "");
    return fmt::format(
        "{}\nmessage channel: {}, {} to send into; messages of up to {} bytes travel in one piece; "
        "the peer is told of {} consumed bytes at a time and can ask\ncarrier: {}, because {}; "
        "{}",
        core.link().explain(), receives, core.writer.size(), core.max_piece(), core.credit_due,
        core.stores ? "store" : "post", core.carrier.reason(), how);
}

}  // namespace millrace::message
