// A client's requests, on their way to the server: each by itself, or several in one message; in a
// session that resumes they are kept until they are answered. Used by client.cpp and
// client_session.cpp; above it: answers.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/client_end.hpp"
#include "client/request_copies.hpp"
#include "millrace/message/detail/in_place.hpp"

namespace millrace::message {

class ClientRequests : public ClientEnd {
  public:
    using ClientEnd::ClientEnd;
    using Call = detail::CallState;

    /// After the first welcome: for so many requests at a time.
    void make_window() {
        calls.set_up(options.window);
        if (options.resumes) copies_.set_up(calls.places());
    }

    // --- one request, copied

    [[gnu::noinline]] base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                                          const RequestOptions& said) {
        if (ended != base::Status::ok || request.size() > max_request || calls.is_full() ||
            ring() == nullptr || ring()->try_send(head_of(said), request) != base::Status::ok)
            [[unlikely]]
            return submit_alone(request, id, said);
        note_submitted(request, id, said);
        return base::Status::ok;
    }
    /// The same while requests are laid in batches: a short one, which calls nobody.
    [[gnu::noinline]] base::Status submit_quickly(std::span<const std::byte> request,
                                                  std::uint64_t& id, const RequestOptions& said) {
        if (!laid_.takes_quickly(request.size()) || ended != base::Status::ok || calls.is_full() ||
            said.deadline.point() != base::Clock::time_point::max()) [[unlikely]] {
            return submit_in_batch(request, id, said);
        }
        id = calls.add();
        counts.bytes_sent += request.size();
        laid_.lay({.length = static_cast<std::uint16_t>(request.size()), .what = said.procedure},
                  request.data());
        if (laid_.count() == most_in_batch) [[unlikely]]
            return send_full_batch();
        return base::Status::ok;
    }
    /// Requests are laid in batches: submit_quickly() is the one to call.
    [[nodiscard]] bool lays_batches() const noexcept { return lays_batches_; }

    // --- one request, written in place

    base::Status claim(std::size_t size, std::span<std::byte>& room) {
        base::Status status = may_send(size);
        if (status != base::Status::ok) return status;
        claimed_as_ = calls.next();
        if (lays_batches_) [[unlikely]] {
            if (!options.resumes) {
                std::byte* const place = place_in_batch(size, status);
                if (place != nullptr) {
                    claimed_ = Claimed::in_batch;
                    room = {place, size};
                    return base::Status::ok;
                }
                if (status != base::Status::too_large) return not_sent(status, size);
            }
            send_batch();  // before the claimed one
        }
        if (!options.resumes) {
            status = line.claim(session_head_bytes + size, room);
            if (status == base::Status::ok) [[likely]] {
                claimed_ = Claimed::in_line;
                room = room.subspan(session_head_bytes);
                return status;
            }
            if (status != base::Status::too_large) return not_sent(status, size);
            if (line->claim_large(size, room)) {
                claimed_ = Claimed::to_be_read;
                return base::Status::ok;
            }
        }
        claimed_ = Claimed::in_scratch;
        scratch_.resize(size);
        room = scratch_;
        return base::Status::ok;
    }
    base::Status commit(std::size_t size, std::uint64_t& id, const RequestOptions& said) {
        if (claimed_as_ != calls.next()) [[unlikely]]
            detail::refuse_nested_use("send a request that is written in place",
                                      server.to_string());
        if (claimed_ == Claimed::in_batch) [[unlikely]] {
            id = add_to_batch(size, said);
            return base::Status::ok;
        }
        if (claimed_ == Claimed::in_scratch) {
            // A claim promises that it can be sent: it is kept where the ring has no room for it.
            const std::span<const std::byte> request = std::span{scratch_}.first(size);
            const base::Status status = send_long(head_of(said), request);
            if (status == base::Status::ok) note_submitted(request, id, said);
            return status;
        }
        const SessionHead head = head_of(said);
        base::Status status = base::Status::ok;
        if (claimed_ == Claimed::to_be_read) [[unlikely]] {
            status = line->commit_large(head, size);
            if (status == base::Status::ok) counts.large += line->count_announced();
        } else {
            std::span<std::byte> room;
            status = line.claim(session_head_bytes + size, room);
            if (status != base::Status::ok) [[unlikely]]
                return not_sent(status, size);
            copy_two_words(room.data(), head);
            status = line.commit(session_head_bytes + size);
        }
        if (status == base::Status::ok) [[likely]]
            id = submitted(size);
        return status;
    }

    // --- several requests in one message

    /// From here on they are laid, until end_batches() or a look that finds no answer.
    void begin_batches() noexcept {
        begins_batches_ = true;
        lays_batches_ = takes_batches;
    }
    void end_batches() noexcept {
        begins_batches_ = false;
        lays_batches_ = gathers_;
        if (ended == base::Status::ok) send_batch();
    }
    /// After a welcome. What is stored is there at once, one by one: nothing is to be gathered.
    void note_batches(bool both_ends_take_them) noexcept {
        takes_batches = both_ends_take_them;
        gathers_ = takes_batches && options.gathers_requests && !ring()->stores();
        lays_batches_ = takes_batches && (begins_batches_ || gathers_);
    }
    /// Room for the first of up to `count` requests, of up to `size` bytes each.
    base::Status claim_several(std::size_t count, std::size_t size, const RequestOptions& said,
                               detail::RequestRoom& room) {
        base::Status status = may_send(size);
        if (status != base::Status::ok) return status;
        room = {.first = calls.next()};
        if (!takes_batches || options.resumes) return base::Status::ok;
        std::byte* const place = place_in_batch(size, status);
        if (place == nullptr) {
            return status == base::Status::too_large ? base::Status::ok : not_sent(status, size);
        }
        const std::size_t left = calls.most() - calls.open();
        room.at = place - entry_head_bytes;
        room.count =
            laid_.fits(size, std::min({count, left, std::size_t{most_in_batch} - laid_.count()}));
        room.head = EntryHead{.what = said.procedure, .number = limit_of(said)}.word();
        return base::Status::ok;
    }
    /// So many of them lie there, up to `end`.
    [[gnu::noinline]] void commit_several(std::byte* end, std::size_t count,
                                          std::size_t bytes) noexcept {
        if (!laid_.is_open()) [[unlikely]]
            return;  // a callable has looked for answers, against what it was told
        calls.add(count);
        counts.bytes_sent += bytes;
        laid_.add_several(end, count);
        if (laid_.count() == most_in_batch) send_batch();
    }
    /// What one call has laid goes, or stays in the batch that was begun before.
    void send_several() noexcept {
        if (!begins_batches_) send_batch();
    }
    /// Some are laid, and not sent.
    [[nodiscard]] bool is_batching() const noexcept { return laid_.is_open(); }
    /// What was laid so far goes.
    [[gnu::noinline]] void send_batch() noexcept {
        if (!laid_.is_open()) return;
        if (laid_.is_empty()) return laid_.drop();
        const std::uint64_t first = laid_.first();
        const std::size_t size =
            laid_.close({.id = first,
                         .procedure = static_cast<std::uint16_t>(laid_.count()),
                         .kind = SessionKind::request_batch,
                         .behind = static_cast<std::uint16_t>(first - calls.lowest()),
                         .limit_us = ring()->say_position()});
        ++counts.batches;
        // That the connection has ended is found by the next look.
        (void)ring()->commit_batch(size);
        if (byte.exists()) tell_server();
    }

    // --- room

    /// The last request found no room.
    [[nodiscard]] bool wants_room() const noexcept { return refused_id_ == calls.next(); }
    /// `full`: it would not yet.
    base::Status look_for_room() {
        if (ended != base::Status::ok) return ended;
        if (is_closed) return base::Status::closed;
        if (calls.is_full() || !is_clear()) return base::Status::full;
        std::span<std::byte> place;
        base::Status status = base::Status::too_large;
        if (takes_batches && refused_bytes_ <= longest_entry) {
            status = ring()->claim_batch(batch_bytes(refused_bytes_), place);
        }
        if (status == base::Status::too_large) {
            status = line.claim(session_head_bytes + refused_bytes_, place);
        }
        // What fits nowhere waits here, and is taken.
        return status == base::Status::too_large ? base::Status::ok : status;
    }

    /// Nothing new is taken, and what was laid goes.
    void take_no_more() noexcept {
        is_closed = true;
        if (ended == base::Status::ok) send_batch();
        calls.limit(0);
    }

    // --- what is no request

    void send_control(const SessionHeader& header) {
        send_batch();
        (void)line->send(pack(header), {});
        if (byte.exists()) tell_server();
    }
    /// Nothing of it goes by the channel that has ended.
    void drop_batch() noexcept { laid_.drop(); }
    /// By the channel that the session goes on with: what has no answer.
    void send_again() {
        for (std::uint64_t id = calls.lowest(); id != calls.next(); ++id) {
            const Call call = calls.of(id);
            if (call == Call::none) continue;
            const RequestCopy& its = copies_.at(calls.place_of(id));
            ++counts.repeated;
            const SessionHeader header{.id = id,
                                       .procedure = its.procedure,
                                       .kind = SessionKind::request,
                                       .behind = static_cast<std::uint16_t>(id - calls.lowest()),
                                       .limit_us = its.limit.in_us()};
            (void)send_long(pack(header), its.payload);
            // The program took it back, and the server may not have heard of that.
            if (call == Call::unwanted) {
                (void)line->send(pack(SessionHeader{.id = id, .kind = SessionKind::cancel}), {});
            }
        }
        if (byte.exists()) tell_server();
    }

  private:
    /// Where the place of the next request is.
    enum class Claimed : std::uint8_t { in_line, in_scratch, to_be_read, in_batch };

    [[gnu::always_inline]] base::Status may_send(std::size_t size) {
        if (ended != base::Status::ok) [[unlikely]]
            return ended;
        if (size > max_request) [[unlikely]]
            return base::Status::too_large;
        if (calls.is_full() || !is_clear()) [[unlikely]]
            return is_closed ? base::Status::closed : not_sent(base::Status::full, size);
        return base::Status::ok;
    }
    [[nodiscard]] static std::uint32_t limit_of(const RequestOptions& said) noexcept {
        return RequestLimit{said.deadline.point(), said.told_from}.in_us();
    }
    [[nodiscard, gnu::always_inline]] SessionHead head_of(const RequestOptions& said) noexcept {
        return pack(SessionHeader{.id = calls.next(),
                                  .procedure = said.procedure,
                                  .kind = SessionKind::request,
                                  .behind = static_cast<std::uint16_t>(calls.open()),
                                  .limit_us = limit_of(said)});
    }
    [[gnu::noinline]] base::Status submit_in_batch(std::span<const std::byte> request,
                                                   std::uint64_t& id, const RequestOptions& said) {
        base::Status status = may_send(request.size());
        if (status != base::Status::ok) return status;
        std::byte* const place = place_in_batch(request.size(), status);
        if (place == nullptr) {
            return status == base::Status::too_large ? submit_alone(request, id, said)
                                                     : not_sent(status, request.size());
        }
        copy_any(place, request.data(), request.size());
        if (options.resumes) [[unlikely]]
            keep_copy(request, said);
        id = add_to_batch(request.size(), said);
        return base::Status::ok;
    }
    /// What submit() does not do by itself: a long one, or one for which there is no room.
    [[gnu::noinline]] base::Status submit_alone(std::span<const std::byte> request,
                                                std::uint64_t& id, const RequestOptions& said) {
        base::Status status = may_send(request.size());
        if (status != base::Status::ok) return status;
        const SessionHead head = head_of(said);
        status = line->try_send(head, request);
        if (status == base::Status::too_large) status = send_long(head, request);
        if (status != base::Status::ok) return not_sent(status, request.size());
        note_submitted(request, id, said);
        return base::Status::ok;
    }
    [[gnu::noinline]] base::Status send_full_batch() noexcept {
        send_batch();
        return base::Status::ok;
    }
    /// Where the next request of `size` bytes goes; null: `status` says why, `too_large`: it is to
    /// go by itself, after what was laid, which is sent.
    [[gnu::always_inline]] std::byte* place_in_batch(std::size_t size, base::Status& status) {
        std::byte* const place = laid_.place_for(size);
        if (place != nullptr) [[likely]]
            return place;
        return place_in_next_batch(size, status);
    }
    [[gnu::noinline]] std::byte* place_in_next_batch(std::size_t size, base::Status& status) {
        if (laid_.is_open()) send_batch();
        status = base::Status::too_large;
        if (size > longest_entry) return nullptr;
        std::span<std::byte> room;
        status = ring()->claim_batch(batch_bytes(size), room);
        if (status != base::Status::ok) return nullptr;
        laid_.open(room, calls.next(),
                   options.resumes ? std::nullopt
                                   : std::optional<std::size_t>{
                                         std::min<std::uint64_t>(max_request, longest_short)});
        // A program's loop is to come here once more: its look sends what is laid.
        ring()->note_room();
        return laid_.place_for(size);
    }
    /// The payload lies there.
    [[gnu::always_inline]] std::uint64_t add_to_batch(std::size_t size,
                                                      const RequestOptions& said) {
        laid_.add({.length = static_cast<std::uint16_t>(size),
                   .what = said.procedure,
                   .number = limit_of(said)});
        const std::uint64_t id = calls.add();
        counts.bytes_sent += size;
        if (laid_.count() == most_in_batch) [[unlikely]]
            send_batch();
        return id;
    }
    base::Status send_long(const SessionHead& head, std::span<const std::byte> request) {
        const base::Status status = line->send(head, request);
        counts.large += line->count_announced();
        return status;
    }
    void note_submitted(std::span<const std::byte> request, std::uint64_t& id,
                        const RequestOptions& said) {
        if (options.resumes) keep_copy(request, said);
        id = submitted(request.size());
    }
    [[gnu::always_inline]] std::uint64_t submitted(std::size_t size) noexcept {
        const std::uint64_t id = calls.add();
        counts.bytes_sent += size;
        if (byte.exists()) tell_server();
        return id;
    }
    [[gnu::noinline]] void keep_copy(std::span<const std::byte> request,
                                     const RequestOptions& said) {
        copies_.keep(calls.place_of(calls.next()), request, said);
    }
    /// Of a request of so many bytes.
    [[gnu::noinline]] base::Status not_sent(base::Status status, std::size_t size) noexcept {
        if (status != base::Status::full) return status;
        ++counts.full;
        refused_id_ = calls.next();
        refused_bytes_ = size;
        return status;
    }

    bool gathers_ = false;         ///< as options.gathers_requests says, where that saves a post
    bool begins_batches_ = false;  ///< between begin_batch() and end_batch() of the client
    bool lays_batches_ = false;    ///< for one of both
    Claimed claimed_ = Claimed::in_line;
    std::uint64_t claimed_as_ = 0;    ///< the number of the request that was claimed
    std::uint64_t refused_id_ = 0;    ///< the number that the last one would have had which …
    std::size_t refused_bytes_ = 0;   ///< … found no room
    BatchWriter laid_;                ///< requests that are laid, and not sent
    RequestCopies copies_;            ///< of the requests of `calls`; only if the session resumes
    std::vector<std::byte> scratch_;  ///< a request that is not laid in place
};

}  // namespace millrace::message
