// What a Client and a Port have alike: the forms of a request that are made of a claimed place, a
// commit and a look for answers. Included by client.hpp and dispatcher.hpp, which say what their
// statuses mean.
//
// What gives up in the middle: call() and answer_to() take their request back, so that what they
// leave is nothing. submit() with a deadline either sends the request or does not. poll() and
// wait() take nothing back: what has no answer stays the program's, to wait for or to cancel().
//
//     client.call(64, [](std::span<std::byte> room) { … },        // both in place, at a Client
//                 [](std::span<const std::byte> answer) { … }, deadline);   // and at a Port
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/detail/filled.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// What may be said of a request.
struct RequestOptions {
    std::uint16_t procedure = 0;  ///< means something to the program
    /// Told to the server, which may leave undone what comes too late. Nothing else keeps to it.
    base::Deadline deadline = base::Deadline::never();
    /// The server is told what was left of the deadline at that time; min(): what is left when the
    /// request is sent, which a dispatcher does later than its port lays it. For a
    /// program that tells the server by itself how long ago that was (rpc/head.hpp).
    base::Clock::time_point told_from = base::Clock::time_point::min();
};

struct Answer {
    std::uint64_t id = 0;  ///< what submit() gave
    Outcome outcome = Outcome::ok;
    /// Of `ok`: the answer, in place; of `failed`: a text. Valid until the call that got it
    /// returns.
    std::span<const std::byte> payload{};
};

/// Base of an `End` that has claim(), commit(), look(), look_for() and pass(), and a submit() that
/// copies.
template <class End>
class Requester {
  public:
    // --- requests, several at a time

    /// Sends a request of `size` bytes that `fill(std::span<std::byte>)` writes in place, where it
    /// is read or sent from, and sets `id` to its number. `fill` returns nothing, or how many bytes
    /// it used. If it throws, nothing is sent. It must not use this end: if it has sent by it,
    /// Error (invalid_argument) is thrown, and what it wrote is not sent. Answers as the end's
    /// submit() of a copy.
    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const RequestOptions& options = {}) {
        std::span<std::byte> room;
        const base::Status status = end().claim(size, room);
        return status == base::Status::ok ? fill_and_commit(room, fill, id, options) : status;
    }
    /// The same, waiting until the request can be sent: for an answer that frees a place in the
    /// window, which is kept for poll() and wait(), or for room in the server's ring. `timed_out`,
    /// `cancelled`: it was not sent.
    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const base::Deadline& deadline, const RequestOptions& options = {}) {
        std::span<std::byte> room;
        const base::Status status = end().claim(size, room, deadline);
        return status == base::Status::ok ? fill_and_commit(room, fill, id, options) : status;
    }
    /// As submit_in_place, of a copy of `request`.
    base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                        const base::Deadline& deadline, const RequestOptions& options = {}) {
        return submit(request.size(), copying(request), id, deadline, options);
    }

    /// Hands the next answer to `take(const Answer&)`, whichever it is. `empty`; otherwise as the
    /// end says. If `take` throws, the answer stays the next. It must not use this end: if it has
    /// taken the answer there, Error (invalid_argument) is thrown, and nothing more is taken.
    template <class Take>
    base::Status poll(Take&& take) {
        Answer answer;
        return hand_out(end().look(answer), answer, take);
    }
    /// The same, waiting for one. `timed_out`, `cancelled`. With nothing outstanding it answers
    /// `empty`: at once, or, where the last submit was `full`, once there is room for it.
    template <class Take>
    base::Status wait(Take&& take, const base::Deadline& deadline) {
        Answer answer;
        return hand_out(end().look(answer, deadline), answer, take);
    }

    // --- one request, and its answer

    /// Replaces `answer` by the answer, or the text of Outcome::failed. Answers to other requests
    /// that come meanwhile are kept for poll() and wait(). A deadline that has passed: `timed_out`,
    /// and nothing is sent. A call that ends without its answer, whatever ends it, leaves nothing:
    /// the request is taken back as by cancel(), and its answer is handed to nobody.
    Outcome call(std::span<const std::byte> request, std::vector<std::byte>& answer,
                 const base::Deadline& deadline, std::uint16_t procedure = 0) {
        return call(
            request,
            [&](std::span<const std::byte> bytes) { answer.assign(bytes.begin(), bytes.end()); },
            RequestOptions{.procedure = procedure, .deadline = deadline});
    }
    /// The same, until `said.deadline`, where `take` gets the answer in place, as below.
    template <class Take>
    Outcome call(std::span<const std::byte> request, Take&& take, const RequestOptions& said) {
        if (said.deadline.expired()) return Outcome::timed_out;
        std::uint64_t id = 0;
        base::Status status = end().submit(request, id, said);
        if (status != base::Status::ok) [[unlikely]] {
            // As one that is claimed: also what is longer than the ring, and after a wait.
            status = submit(request, id, said.deadline, said);
            if (status != base::Status::ok) return outcome_of(status);
        }
        return answer_to(id, take, said.deadline);
    }
    /// Without copies: `fill` as submit(), `take(std::span<const std::byte>)`, or
    /// `take(const Answer&)`, gets the answer, or the text, in place, and only if there is one. If
    /// it throws, the answer has been taken all the same.
    template <class Fill, class Take>
    Outcome call(std::size_t size, Fill&& fill, Take&& take, const base::Deadline& deadline,
                 std::uint16_t procedure = 0) {
        return call(size, std::forward<Fill>(fill), std::forward<Take>(take),
                    RequestOptions{.procedure = procedure, .deadline = deadline});
    }
    /// The same until `said.deadline`.
    template <class Fill, class Take>
    Outcome call(std::size_t size, Fill&& fill, Take&& take, const RequestOptions& said) {
        const base::Deadline& deadline = said.deadline;
        if (deadline.expired()) return Outcome::timed_out;
        std::span<std::byte> room;
        base::Status status = end().claim(size, room, deadline);
        if (status != base::Status::ok) return outcome_of(status);
        std::uint64_t id = 0;
        status = fill_and_commit(room, fill, id, said);
        return status == base::Status::ok ? answer_to(id, take, deadline) : outcome_of(status);
    }

    /// The answer to what submit() gave that number, as call() takes it: its second half.
    template <class Take>
    Outcome answer_to(std::uint64_t id, Take&& take, const base::Deadline& deadline) {
        Answer answer;
        const base::Status status = end().look_for(id, answer, deadline);
        if (status != base::Status::ok) return outcome_of(status);
        if (answer.outcome <= Outcome::failed) {
            try {
                if constexpr (std::is_invocable_v<Take&, const Answer&>) {
                    take(std::as_const(answer));
                } else {
                    take(answer.payload);
                }
            } catch (...) {
                // Nobody else asks for it.
                end().pass_unless_gone();
                throw;
            }
        }
        end().pass();
        return answer.outcome;
    }

  private:
    friend End;
    Requester() noexcept = default;

    [[nodiscard]] End& end() noexcept { return static_cast<End&>(*this); }
    [[nodiscard]] static auto copying(std::span<const std::byte> request) noexcept {
        return [request](std::span<std::byte> room) {
            std::copy(request.begin(), request.end(), room.begin());
        };
    }
    template <class Fill>
    base::Status fill_and_commit(std::span<std::byte> room, Fill& fill, std::uint64_t& id,
                                 const RequestOptions& options) {
        const std::size_t used = detail::filled(room, fill);
        return end().commit(used, id, options);
    }
    template <class Take>
    base::Status hand_out(base::Status found, const Answer& answer, Take& take) {
        if (found != base::Status::ok) return found;
        take(answer);
        end().pass();
        return found;
    }
};

}  // namespace millrace::message
