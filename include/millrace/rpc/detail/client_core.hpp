// What of an rpc client depends on no type: its connection, the procedures of its server, calls
// that wait for their answers, and when a call is made again. Used by client.hpp, coroutine.hpp and
// stream.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/detail/pending.hpp"
#include "millrace/rpc/client_options.hpp"
#include "millrace/rpc/detail/path.hpp"
#include "millrace/rpc/detail/procedures.hpp"
#include "millrace/rpc/detail/record.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/profile.hpp"
#include "millrace/rpc/result.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc::detail {

class AsyncCore;

/// What of a client depends on no type. Belongs to one thread, which is checked.
class ClientCore {
  public:
    ClientCore(Path path, ClientOptions chosen, Choice choice);
    ClientCore(const ClientCore&) = delete;
    ClientCore& operator=(const ClientCore&) = delete;
    ~ClientCore();

    void check_thread() const {
        if (owner_ != this_thread()) [[unlikely]]
            refuse_thread();
    }
    void adopt() noexcept { owner_ = this_thread(); }

    // --- set-up

    void use(std::size_t place, Signature signature, const base::Deadline& deadline);
    void read_table(const base::Deadline& deadline);
    [[nodiscard]] std::vector<ProcedureReport> ask(bool with_counts,
                                                   const base::Deadline& deadline);
    /// Throws Error (invalid_argument): it was not asked for.
    [[nodiscard]] std::uint16_t number_of(std::size_t place) const {
        return procedures_.number_of(place);
    }

    // --- calls

    [[nodiscard]] Head head_of(const base::Deadline& deadline,
                               const CallOptions& options) noexcept {
        Head head{.sent_at = {}, .trace = options.trace, .priority = options.priority};
        if (deadline.point() != base::Clock::time_point::max()) {
            head.sent_at =
                static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count());
            if (clocks_parted_) [[unlikely]]
                head.clocks_parted = std::exchange(clocks_parted_, false);
        }
        return head;
    }
    /// What is to be known of a call that did not end well, and whether it is to be made again.
    struct Attempt {
        std::size_t place = 0;
        bool is_idempotent = false;
        std::uint32_t made = 1;
    };
    [[nodiscard]] bool repeats(Code code, Attempt& attempt, const base::Deadline& deadline);
    /// As the one before, of a call for which nobody waits: when it is to be made again; nothing:
    /// never. It is counted as made.
    [[nodiscard]] std::optional<base::Clock::time_point> again_at(Code code, Attempt& attempt,
                                                                  const base::Deadline& deadline);
    [[nodiscard]] std::chrono::nanoseconds pause_before(const Attempt& attempt) const noexcept;
    /// Whether what was put off can be sent now: the server's numbers are known.
    [[nodiscard]] bool knows(const Attempt& attempt) const noexcept {
        return !procedures_.needs_table() && has(attempt);
    }
    /// The server of this connection has it.
    [[nodiscard]] bool has(const Attempt& attempt) const noexcept {
        return procedures_.has(attempt.place);
    }
    void earn() noexcept {
        if (budget_ < options_.retry.largest_budget) budget_ += options_.retry.budget_per_call;
    }
    /// An error that a server said.
    void note(Code code, const base::Deadline& deadline) noexcept;

    /// As many wait as there are records: answers lie unread while other calls are made.
    [[nodiscard]] bool has_room() const noexcept { return !pending_.is_full(); }
    [[nodiscard]] Record& free_record(std::uint64_t id) noexcept { return pending_.free_entry(id); }
    /// It has its type and storage.
    void submitted(Record& record, std::uint64_t id, const base::Deadline& deadline) noexcept {
        record.id = id;
        record.deadline = deadline;
        pending_.note_taken();
        times_.add(deadline);
    }
    base::Status poll();
    base::Status wait(const base::Deadline& deadline);
    bool cancel(std::uint64_t id);
    /// The same in whichever thread may use this, and while another one connects anew.
    bool take_back(std::uint64_t id);
    [[nodiscard]] std::size_t outstanding() const noexcept { return pending_.used(); }
    /// The earliest deadline of what was submitted; max(): none. Not later than it is.
    [[nodiscard]] base::Clock::time_point earliest() const noexcept { return times_.earliest(); }
    [[nodiscard]] bool has_cancellable() const noexcept { return times_.has_cancellable(); }
    /// Ends what was submitted and is over. How many.
    std::size_t expire();
    /// Nobody reads it any more. The server is told, at once or as soon as there is room.
    void give_up_stream(std::uint64_t number) noexcept;

    /// A request found no room: a wait for which there is no answer is for room.
    void note_full() noexcept { was_full_ = true; }

    base::Status reconnect(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);

    // --- a connection that has ended, and another one in its place

    [[nodiscard]] bool may_reconnect() const noexcept { return options_.reconnects && !is_closed_; }
    /// It has ended, and may be made anew.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_; }
    void lose() noexcept { is_lost_ = is_lost_ || may_reconnect(); }
    /// A call that finds it so may wait for that.
    [[nodiscard]] bool may_wait_for_connection() const noexcept {
        return may_reconnect() && options_.retry.attempts > 1;
    }
    /// Calls by a dispatcher that have not been told of its end yet.
    [[nodiscard]] bool awaits_ends() const noexcept {
        return messages_.is_shared() && pending_.used() != 0;
    }
    /// It could not be made: the next attempt is a while later.
    void note_vain_attempt() noexcept;
    /// Before that it is not tried again.
    [[nodiscard]] base::Clock::time_point retry_at() const noexcept { return retry_at_; }

    // From go_away() to come_back() another thread connects anew by connect_away(), and nothing
    // else uses the path: calls of the program are refused, and what is taken back is told later.
    void go_away() noexcept;
    [[nodiscard]] bool is_away() const noexcept { return away_.is_so; }
    /// In that thread. False: in vain, or cancelled.
    [[nodiscard]] bool connect_away(const base::Deadline& deadline) noexcept;
    /// In the one that went away. `is_connected`: what that answered. Throws Error as use().
    void come_back(bool is_connected);

    [[nodiscard]] Path& messages() noexcept { return messages_; }
    [[nodiscard]] const Path& messages() const noexcept { return messages_; }
    [[nodiscard]] ClientStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;

  private:
    /// While another thread connects anew.
    struct Away {
        bool is_so = false;
        std::vector<std::uint64_t> taken_back{};  ///< calls of which the server is told later
        std::optional<std::vector<ProcedureReport>> table{};
        message::ClientStats stats{};
    };

    [[nodiscard]] static const void* this_thread() noexcept {
        static thread_local const char here = 0;
        return &here;
    }
    [[noreturn]] void refuse_thread() const;
    [[nodiscard]] bool reconnects(const base::Deadline& deadline);
    [[nodiscard]] bool may_repeat(Code code, const Attempt& attempt) const noexcept;
    [[nodiscard]] bool pays(const Attempt& attempt);
    /// It is over, and its caller shall be told, or not.
    void release(const Record& record) noexcept {
        pending_.note_free();
        times_.remove(record.deadline);
        if (outstanding() == 0) times_.clear();
    }
    void finish(Record& record) {
        release(record);
        record.type->finish(record);
    }
    void cancel_message(std::uint64_t id);
    void end(Record& record, Code code);
    void end_all(Code code);
    base::Status ask_anew(std::vector<ProcedureReport>& table, const base::Deadline& deadline);
    void take_table_anew(std::vector<ProcedureReport> table);
    template <class Ask>
    base::Status look(Ask&& ask);
    void say_unwanted();

    Path messages_;
    ClientOptions options_;
    Choice choice_;
    const void* owner_ = this_thread();
    Procedures procedures_;
    message::detail::PendingTable<Record> pending_;
    message::detail::PendingTimes times_;  ///< of these
    std::uint32_t polls_ = 0;
    double budget_;
    bool clocks_parted_ = false;
    bool was_full_ = false;  ///< the last request found no room
    bool is_closed_ = false;
    bool is_lost_ = false;
    base::Clock::time_point retry_at_ = base::Clock::time_point::min();
    std::uint32_t vain_attempts_ = 0;              ///< to connect anew, since that was done last
    std::vector<std::uint64_t> unwanted_streams_;  ///< of which the server was not told yet
    Away away_;
    ClientStats counts_;
};

/// There is nothing for a head to say.
[[nodiscard]] inline bool says_nothing(const base::Deadline& deadline,
                                       const CallOptions& options) noexcept {
    return deadline.point() == base::Clock::time_point::max() && !options.trace.has_value() &&
           options.priority == Priority::normal;
}

/// What the head says of when the request was made, which the server takes off what it is told of
/// the deadline.
[[nodiscard]] inline base::Clock::time_point told_from(const Head& head) noexcept {
    return head.sent_at.has_value() ? base::Clock::time_point{std::chrono::nanoseconds{
                                          static_cast<std::int64_t>(*head.sent_at)}}
                                    : base::Clock::time_point::min();
}

/// Connects as options.design says, and tells what that came to. Throws Error as Client::connect.
[[nodiscard]] Path connect_path(const connect::Address& address, ClientOptions& options,
                                std::size_t response_bytes, const base::Deadline& deadline,
                                Choice& chosen);

/// Sends a request of P, for whose answer there is a free record. `waits`: for room. `stream`: its
/// number, if there is one.
template <Procedure P>
base::Status send(ClientCore& core, const typename P::Request& request,
                  const base::Deadline& deadline, const CallOptions& options, bool waits,
                  std::uint64_t& id, std::optional<std::uint64_t> stream = {}) {
    core.check_thread();
    const std::uint16_t number = core.number_of(place_of<P>);
    if (deadline.expired()) return base::Status::timed_out;
    if (!core.has_room()) [[unlikely]]
        return base::Status::full;
    const Writer<typename P::Request> writer{request};
    if constexpr (lies_as_bytes<typename P::Request>) {
        // Nothing is said of it, and it lies there as it travels.
        if (!waits && !stream.has_value() && says_nothing(deadline, options)) [[likely]] {
            return core.messages().submit(bytes_of(request), id, {.procedure = number});
        }
    }
    Head head = core.head_of(deadline, options);
    head.stream = stream;
    const std::size_t head_bytes = size_of(head);
    const auto fill = [&](std::span<std::byte> room) {
        if (head_bytes != 0) write(head, room.data());
        writer.write(room.data() + head_bytes);
    };
    const message::RequestOptions said{
        .procedure = head_bytes == 0 ? number : static_cast<std::uint16_t>(number | head_bit),
        .deadline = deadline,
        .told_from = told_from(head)};
    const std::size_t size = head_bytes + writer.size();
    return waits ? core.messages().submit(size, fill, id, deadline, said)
                 : core.messages().submit(size, fill, id, said);
}

/// The same, where `put(Record&)` makes what waits for the answer.
template <Procedure P, class Put>
base::Status submit(ClientCore& core, const typename P::Request& request,
                    const base::Deadline& deadline, const CallOptions& options, bool waits,
                    std::uint64_t& id, Put&& put) {
    const base::Status status = send<P>(core, request, deadline, options, waits, id);
    if (status != base::Status::ok) [[unlikely]] {
        if (status == base::Status::full) core.note_full();
        return status;
    }
    Record& record = core.free_record(id);
    put(record);
    core.submitted(record, id, deadline);
    return status;
}

}  // namespace millrace::rpc::detail
