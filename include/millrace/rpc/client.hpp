// The client's side of typed calls: procedures of an rpc::Server, over one session of
// message::Client.
//
//     auto client = rpc::Client::connect<Get, Put>(address, {}, deadline);
//     const rpc::Result<Value> value = client.call<Get>({.key = 7}, deadline);
//     const auto take = [&](rpc::Result<Value> value) { … };
//     if (client.submit<Get>({.key = 7}, take, deadline) != base::Status::ok) …
//     while (client.wait(deadline) == base::Status::ok) {}      // calls what has its answer
//
// Right after it has connected, a client asks the server for its table of procedures; whoever uses
// one that is not there, or that means something else, learns so then, and not by its first call.
// coroutine.hpp has calls for coroutines.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "millrace/rpc/design.hpp"
#include "millrace/rpc/detail/path.hpp"
#include "millrace/rpc/dispatcher.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/profile.hpp"
#include "millrace/rpc/result.hpp"
#include "millrace/rpc/stream.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc {

/// When a call is made once more: where nothing was done (is_safe_to_repeat), and, of a procedure
/// that is_idempotent, where nobody knows whether something was. Within the deadline, and within a
/// budget of the client: whatever fails, repeating adds no more than a part to the load.
/// Client::call and AsyncClient::call do so, and Client::submit where CallOptions::again asks for
/// it. All of them connect anew for that (ClientOptions::reconnects): call() at once, wait() for
/// what was submitted so, and an AsyncClient in a thread of its own.
struct RetryPolicy {
    std::uint32_t attempts = 3;    ///< of a call, the first one included; 1: never again
    double budget_per_call = 0.1;  ///< what each call adds to the budget; a repetition takes 1
    double largest_budget = 10;    ///< with which a client begins
    std::chrono::nanoseconds pause = std::chrono::milliseconds{1};  ///< doubled each time
    std::chrono::nanoseconds longest_pause = std::chrono::milliseconds{100};
};

struct ClientOptions {
    /// Of the session beneath. `window`: calls without an answer at a time, which is this client's
    /// own limit. What `requests` and `answers` are is for `design` to say, and refused here.
    message::ClientOptions messages{};
    /// How requests and answers travel: as the program says, or as a profile of measurements says
    /// for what the client is going to do. Of transports other than rc: as it is.
    std::variant<Design, Automatic> design = Design{};
    /// For Connection::dispatcher, which Automatic chooses only among if there is one.
    std::shared_ptr<Dispatcher> dispatcher{};
    /// For Automatic; null: Profile::built_in().
    std::shared_ptr<const Profile> profile{};
    RetryPolicy retry{};
    /// Where the connection has ended, what may be made again (RetryPolicy) connects anew.
    bool reconnects = true;
};

/// What may be said of a call.
struct CallOptions {
    std::optional<Trace> trace{};  ///< travels with it
    Priority priority = Priority::normal;
    /// Of what is submitted: keep a copy of the request, and make the call again as RetryPolicy
    /// says, before the callback is called. Allocates.
    bool again = false;
};

struct ClientStats {
    message::ClientStats messages{};
    std::uint64_t repeated = 0;       ///< calls that were made once more
    std::uint64_t out_of_budget = 0;  ///< that would have been, and were not
    std::uint64_t timed_out = 0;      ///< of those that were submitted
    std::uint64_t tables = 0;         ///< asked for
    std::uint64_t reconnected = 0;
};

namespace detail {

class AsyncCore;
class ClientCore;

/// A submitted call that has no answer yet: what is to be done with it.
struct Record {
    struct Type {
        void (*take)(Record& record, const message::Answer& answer);  ///< keeps it as a result
        void (*end)(Record& record, Code code) noexcept;              ///< the same without one
        void (*finish)(Record& record);         ///< frees the record, then tells the caller
        void (*drop)(Record& record) noexcept;  ///< frees the record
    };
    static constexpr std::size_t room = 192;

    const Type* type = nullptr;  ///< null: it is free
    std::uint64_t id = 0;
    base::Deadline deadline = base::Deadline::never();
    alignas(std::max_align_t) std::array<std::byte, room> storage;
};

/// The result that an answer says, whatever its outcome.
template <class A>
void read_result(const message::Answer& answer, Result<A>& into) {
    if (answer.outcome == message::Outcome::ok) [[likely]] {
        try {
            if (read(answer.payload, into.emplace())) [[likely]]
                return;
        } catch (const std::exception&) {
            // A codec that cannot read it.
        }
        into = Result<A>{Code::bad_answer};
    } else if (answer.outcome == message::Outcome::failed) {
        into = Result<A>{parse_error(answer.payload)};
    } else {
        into = Result<A>{code_of(answer.outcome)};
    }
}

/// A callback and the result that it is going to get.
template <class A, class Callback>
struct Submitted {
    Callback callback;
    Result<A> result{Code::dropped};

    static constexpr bool is_small = sizeof(Callback) + sizeof(Result<A>) + 16 <= Record::room;
    static void put(Record& record, Callback&& callback) {
        if constexpr (is_small) {
            static_assert(sizeof(Submitted) <= Record::room);
            new (record.storage.data()) Submitted{std::move(callback)};
        } else {
            new (record.storage.data()) Submitted* {new Submitted{std::move(callback)}};
        }
        record.type = &type;
    }
    [[nodiscard]] static Submitted& of(Record& record) noexcept {
        if constexpr (is_small) {
            return *std::launder(reinterpret_cast<Submitted*>(record.storage.data()));
        } else {
            return **std::launder(reinterpret_cast<Submitted**>(record.storage.data()));
        }
    }
    static void drop(Record& record) noexcept {
        Submitted& submitted = of(record);
        record.type = nullptr;
        if constexpr (is_small) {
            submitted.~Submitted();
        } else {
            delete &submitted;
        }
    }
    static constexpr Record::Type type{
        .take = [](Record& record,
                   const message::Answer& answer) { read_result(answer, of(record).result); },
        .end = [](Record& record, Code code) noexcept { of(record).result = Result<A>{code}; },
        .finish =
            [](Record& record) {
                Submitted done{std::move(of(record))};
                drop(record);
                std::invoke(done.callback, std::move(done.result));
            },
        .drop = drop,
    };
};

/// A submitted call that is made again where that may help. Owned by the client's core.
struct AgainCall;

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
        if (place >= numbers_.size() || numbers_[place] == 0) [[unlikely]]
            refuse_procedure();
        return numbers_[place];
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
    /// The same of a call for which nobody waits: when it is to be made again; nothing: never. It
    /// is counted as made.
    [[nodiscard]] std::optional<base::Clock::time_point> again_at(Code code, Attempt& attempt,
                                                                  const base::Deadline& deadline);
    [[nodiscard]] std::chrono::nanoseconds pause_before(const Attempt& attempt) const noexcept;
    /// Whether what was put off can be sent now: the server's numbers are known.
    [[nodiscard]] bool knows(const Attempt& attempt) const noexcept {
        return !needs_table_ && has(attempt);
    }
    /// The server of this connection has it.
    [[nodiscard]] bool has(const Attempt& attempt) const noexcept {
        return attempt.place < numbers_.size() && numbers_[attempt.place] != 0;
    }
    void earn() noexcept {
        if (budget_ < options_.retry.largest_budget) budget_ += options_.retry.budget_per_call;
    }
    /// An error that a server said.
    void note(Code code, const base::Deadline& deadline) noexcept;

    /// Null: there is none.
    [[nodiscard]] Record* find(std::uint64_t id) noexcept {
        for (std::uint64_t at = id, end = id + mask_; at <= end; ++at) {
            Record& record = records_[at & mask_];
            if (record.type != nullptr && record.id == id) [[likely]]
                return &record;
        }
        return nullptr;
    }
    /// As many wait as there are records: answers lie unread while other calls are made.
    [[nodiscard]] bool has_room() const noexcept { return outstanding_ <= mask_; }
    [[nodiscard]] Record& free_record(std::uint64_t id) noexcept {
        while (records_[id & mask_].type != nullptr) [[unlikely]]
            ++id;
        return records_[id & mask_];
    }
    /// It has its type and storage.
    void submitted(Record& record, std::uint64_t id, const base::Deadline& deadline) noexcept {
        record.id = id;
        record.deadline = deadline;
        ++outstanding_;
        if (deadline.point() < earliest_) earliest_ = deadline.point();
        if (deadline.cancellation() != nullptr) note_cancellable(deadline);
    }
    base::Status poll();
    base::Status wait(const base::Deadline& deadline);
    bool cancel(std::uint64_t id);
    /// The same in whichever thread may use this, and while another one connects anew.
    bool take_back(std::uint64_t id);
    [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_ + put_off_; }
    /// Those that are made again: sent, and kept until they are over.
    base::Status submit_again(std::unique_ptr<AgainCall> call, std::uint64_t& id);
    /// It has failed, and is put off. False: it is over.
    [[nodiscard]] bool puts_off(AgainCall& call, Code code);
    /// It is over, and the caller's to tell.
    [[nodiscard]] std::unique_ptr<AgainCall> take(AgainCall& call) noexcept;
    /// The earliest deadline of what was submitted; max(): none. Not later than it is.
    [[nodiscard]] base::Clock::time_point earliest() const noexcept { return earliest_; }
    [[nodiscard]] bool has_cancellable() const noexcept { return cancellable_ != 0; }
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
    /// It has ended, and what may be made again waits for another one.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_; }
    void lose() noexcept { is_lost_ = is_lost_ || may_reconnect(); }
    /// A call that finds it so may wait for that.
    [[nodiscard]] bool may_wait_for_connection() const noexcept {
        return may_reconnect() && options_.retry.attempts > 1;
    }
    /// Calls by a dispatcher that have not been told of its end yet.
    [[nodiscard]] bool awaits_ends() const noexcept {
        return messages_.is_shared() && outstanding_ != 0;
    }
    /// It could not be made: counts as an attempt of each call that is put off here. How many are
    /// over by that.
    std::size_t note_vain_attempt();
    /// Before that it is not tried again.
    [[nodiscard]] base::Clock::time_point retry_at() const noexcept { return retry_at_; }

    // From go_away() to come_back() another thread connects anew by connect_away(), and nothing
    // else uses the path: calls of the program are refused, and what is taken back is told later.
    void go_away() noexcept;
    [[nodiscard]] bool is_away() const noexcept { return is_away_; }
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
    struct Used {
        std::size_t place;
        Signature signature;
    };

    [[nodiscard]] static const void* this_thread() noexcept {
        static thread_local const char here = 0;
        return &here;
    }
    [[noreturn]] void refuse_thread() const;
    [[noreturn]] void refuse_procedure() const;
    void resolve(const Used& used);
    [[nodiscard]] bool reconnects(const base::Deadline& deadline);
    [[nodiscard]] bool may_repeat(Code code, const Attempt& attempt) const noexcept;
    [[nodiscard]] bool pays(const Attempt& attempt);
    void note_cancellable(const base::Deadline& deadline) noexcept {
        if (cancellable_++ == 0) {
            cancellation_ = deadline.cancellation();
        } else if (cancellation_ != deadline.cancellation()) {
            cancellation_ = nullptr;
        }
    }
    void put_off(AgainCall& call, base::Clock::time_point due) noexcept;
    [[nodiscard]] AgainCall* due_again(base::Clock::time_point now) noexcept;
    std::size_t send_again();
    /// It is over, and its caller shall be told, or not.
    void release(const Record& record) noexcept {
        --outstanding_;
        if (record.deadline.cancellation() != nullptr) --cancellable_;
        if (outstanding() == 0) earliest_ = base::Clock::time_point::max();
    }
    void finish(Record& record) {
        release(record);
        record.type->finish(record);
    }
    void cancel_message(std::uint64_t id);
    void end(Record& record, Code code);
    void end_all(Code code);
    [[nodiscard]] bool waits_for_connection(AgainCall& call);
    base::Status connect_anew(const base::Deadline& deadline);
    base::Status ask_anew(std::vector<ProcedureReport>& table, const base::Deadline& deadline);
    void take_table_anew(std::vector<ProcedureReport> table);
    void resolve_all();
    template <class Ask>
    base::Status look(Ask&& ask);
    void say_unwanted();

    Path messages_;
    ClientOptions options_;
    Choice choice_;
    const void* owner_ = this_thread();
    std::vector<std::uint16_t> numbers_;  ///< by place; 0: not asked for
    std::vector<Used> used_;
    std::vector<ProcedureReport> table_;
    std::unique_ptr<Record[]> records_;
    std::uint64_t mask_ = 0;
    std::size_t outstanding_ = 0;
    std::size_t cancellable_ = 0;
    /// Of all of these, as far as they have had one since there were none; else null.
    const base::Cancellation* cancellation_ = nullptr;
    std::vector<std::unique_ptr<AgainCall>> again_;
    std::size_t put_off_ = 0;  ///< of again_
    base::Clock::time_point earliest_ = base::Clock::time_point::max();
    std::uint32_t polls_ = 0;
    double budget_;
    bool clocks_parted_ = false;
    bool needs_table_ = false;
    bool was_full_ = false;  ///< the last request found no room
    bool is_closed_ = false;
    bool is_lost_ = false;
    bool is_away_ = false;
    base::Clock::time_point retry_at_ = base::Clock::time_point::min();
    std::uint32_t vain_attempts_ = 0;      ///< to connect anew, since that was done last
    std::uint64_t unsent_ = first_unsent;  ///< numbers of calls that were put off unsent
    static constexpr std::uint64_t first_unsent = std::uint64_t{1} << 63;
    std::vector<std::uint64_t> taken_back_;  ///< while away
    std::vector<std::uint64_t> unwanted_streams_;  ///< of which the server was not told yet
    std::optional<std::vector<ProcedureReport>> table_away_;
    message::ClientStats stats_away_;
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

struct AgainCall {
    AgainCall(const ClientCore::Attempt& its, const base::Deadline& until, Priority said)
        : attempt{its}, deadline{until}, priority{said} {}
    AgainCall(const AgainCall&) = delete;
    AgainCall& operator=(const AgainCall&) = delete;
    virtual ~AgainCall() = default;
    /// Sets `id`. As Client::submit.
    virtual base::Status send(ClientCore& core) = 0;
    /// Calls the callback, of a call that was taken from the core.
    virtual void end(Code code) = 0;

    ClientCore::Attempt attempt;
    base::Deadline deadline;
    Priority priority;
    std::uint64_t first_id = 0;  ///< by which the caller knows it
    std::uint64_t id = 0;
    Code code = Code::not_sent;  ///< of the last time
    bool is_put_off = false;
    std::uint32_t vain_attempts = 0;  ///< to connect anew, that were counted
    base::Clock::time_point due{};
};

template <UnaryProcedure P, class Callback>
class Again final : public AgainCall {
  public:
    using A = Owned<typename P::Response>;
    Again(const typename P::Request& request, Callback callback, const base::Deadline& until,
          const CallOptions& options)
        : AgainCall{{.place = place_of<P>, .is_idempotent = is_idempotent<P>()},
                    until,
                    options.priority},
          request_{own(request)},
          callback_{std::move(callback)},
          options_{options} {}

    base::Status send(ClientCore& core) override {
        return submit<P>(core, typename P::Request{request_}, deadline, options_, false, id,
                         [&](Record& record) {
                             Submitted<A, Done>::put(record, Done{&core, this});
                         });
    }
    void end(Code with) override { std::invoke(callback_, Result<A>{with}); }

  private:
    using Request = Owned<typename P::Request>;
    struct Done {
        ClientCore* core;
        Again* call;
        void operator()(Result<A> result) const {
            if (!result.ok() && core->puts_off(*call, result.code())) return;
            const std::unique_ptr<AgainCall> owned = core->take(*call);
            std::invoke(call->callback_, std::move(result));
        }
    };
    [[nodiscard]] static Request own(const typename P::Request& request) {
        if constexpr (std::is_same_v<Request, typename P::Request>) {
            return request;
        } else {
            return Request{request.begin(), request.end()};
        }
    }

    Request request_;
    Callback callback_;
    CallOptions options_;
};

}  // namespace detail

/// One session with a server. Move-only. Belongs to the thread that made it, or to the one that
/// called adopt() since: another one that calls gets an Error (invalid_argument).
class Client {
  public:
    /// Connects, asks for the table, and finds each of the procedures in it. Throws Error as
    /// message::Client::connect; as use(); protocol: it is no rpc server; invalid_argument: a
    /// design with a dispatcher, and none is named; as Profile::built_in.
    template <Procedure... P>
    [[nodiscard]] static Client connect(const connect::Address& address, ClientOptions options,
                                        const base::Deadline& deadline) {
        Client client =
            connect_to(address, std::move(options), deadline,
                       std::max({std::size_t{0}, detail::plain_response_bytes<P>()...}));
        (client.use<P>(deadline), ...);
        return client;
    }
    Client(Client&&) noexcept;
    Client& operator=(Client&&) noexcept;
    /// What was submitted and has no answer is dropped, and its callbacks are not called.
    ~Client();

    /// Finds the procedure in the server's table, so that it can be called. Throws Error:
    /// not_found, the server has none of that name; invalid_argument, request or response are
    /// others there.
    template <Procedure P>
    void use(const base::Deadline& deadline) {
        core_->check_thread();
        core_->use(detail::place_of<P>, detail::signature_of<P>(), deadline);
    }

    // --- one call

    /// Waits for the answer. Answers to what was submitted stay for poll() and wait() meanwhile.
    /// A deadline that has passed: Code::late, and nothing is sent. Made again as RetryPolicy says.
    /// Throws Error (invalid_argument): the procedure was not asked for; the thread is another one.
    template <UnaryProcedure P>
    [[nodiscard]] Result<Owned<typename P::Response>> call(const typename P::Request& request,
                                                           const base::Deadline& deadline,
                                                           const CallOptions& options = {}) {
        using A = Owned<typename P::Response>;
        detail::ClientCore& core = *core_;
        core.check_thread();
        const detail::Writer<typename P::Request> writer{request};
        detail::ClientCore::Attempt attempt{.place = detail::place_of<P>,
                                            .is_idempotent = detail::is_idempotent<P>()};
        core.earn();
        Result<A> result{Code::dropped};
        const auto take = [&](const message::Answer& answer) {
            detail::read_result(answer, result);
        };
        while (true) {
            const std::uint16_t number = core.number_of(attempt.place);
            bool is_sent = false;
            std::uint64_t id = 0;
            if constexpr (detail::lies_as_bytes<typename P::Request>) {
                // Nothing is said of it, and it lies there as it travels.
                is_sent = detail::says_nothing(deadline, options) &&
                          core.messages().submit(detail::bytes_of(request), id,
                                                 {.procedure = number}) == base::Status::ok;
            }
            message::Outcome outcome = message::Outcome::ok;
            if (is_sent) {
                outcome = core.messages().answer_to(id, take, deadline);
            } else {
                const Head head = core.head_of(deadline, options);
                const std::size_t head_bytes = size_of(head);
                outcome = core.messages().call(
                    head_bytes + writer.size(),
                    [&](std::span<std::byte> room) {
                        is_sent = true;
                        if (head_bytes != 0) write(head, room.data());
                        writer.write(room.data() + head_bytes);
                    },
                    take,
                    {.procedure =
                         head_bytes == 0 ? number : static_cast<std::uint16_t>(number | head_bit),
                     .deadline = deadline,
                     .told_from = detail::told_from(head)});
            }
            if (result.ok()) [[likely]]
                return result;
            if (outcome > message::Outcome::failed) result = ended(outcome, is_sent);
            core.note(result.code(), deadline);
            if (!core.repeats(result.code(), attempt, deadline)) return result;
        }
    }

    // --- several at a time

    /// Sends the request, and calls `callback(Result<Response>)` once, from poll(), wait() or
    /// close(), which may make further calls. `ok`; `full`: as many as the window allows have no
    /// answer, or the server's ring has no room; `timed_out`: the deadline has passed; `too_large`,
    /// `closed`, `peer_lost`: it was not sent, and `callback` is not called. Never blocks. Made
    /// again only where CallOptions::again says so: else the callback gets the code. Such a call
    /// is taken (`ok`) where the connection has ended, too, and waits for another one. Callback and
    /// Result<Response> together take at most 176 bytes, or they are allocated. Throws as call().
    template <UnaryProcedure P, class Callback>
    base::Status submit(const typename P::Request& request, Callback callback,
                        const base::Deadline& deadline, const CallOptions& options = {},
                        std::uint64_t* id = nullptr) {
        return submit_by<P>(request, std::move(callback), deadline, options, false, id);
    }
    /// The same, waiting for room until the deadline. Callbacks are called later, by poll() and
    /// wait(). `full`: answers to as many calls as the window allows lie there already. With
    /// CallOptions::again it does not wait.
    template <UnaryProcedure P, class Callback>
    base::Status submit_or_wait(const typename P::Request& request, Callback callback,
                                const base::Deadline& deadline, const CallOptions& options = {},
                                std::uint64_t* id = nullptr) {
        return submit_by<P>(request, std::move(callback), deadline, options, true, id);
    }
    /// Calls the callback of one answer, or of what is over by its deadline (Code::timed_out,
    /// Code::cancelled). `ok`; `empty`; `closed`, `peer_lost`: nothing more comes, and what had no
    /// answer was told so, unless the session resumes, or it is made again: that waits for wait()
    /// or reconnect(). Never blocks. Throws what a callback throws.
    base::Status poll();
    /// The same, waiting for one, and connecting anew for what is made again. `timed_out`,
    /// `cancelled`. With nothing outstanding, `empty`: at once, or, where the last submit() was
    /// `full`, once there is room for it. Throws Error, too, where a session
    /// that resumes has come to a server that lacks a procedure.
    base::Status wait(const base::Deadline& deadline);
    /// The call is not wanted any more: its callback is destroyed and never called, and the server
    /// is told (Reply::is_wanted). False: there is no such call without an answer.
    bool cancel(std::uint64_t id);
    /// What was submitted and has no answer.
    [[nodiscard]] std::size_t outstanding() const noexcept;

    // --- streams

    /// Calls a procedure that answers by a stream, which may last until the deadline. The reader
    /// asks for so many parts `ahead` of what was read, each of which takes a place in the window.
    /// A call that cannot be sent gives a reader that says so. Throws as call().
    template <StreamProcedure P>
    [[nodiscard]] StreamReader<P> open(const typename P::Request& request,
                                       const base::Deadline& deadline, std::uint32_t ahead = 8,
                                       const CallOptions& options = {}) {
        auto reader = std::make_unique<detail::ReaderCore>(*core_, deadline, ahead);
        std::uint64_t id = 0;
        const base::Status status =
            detail::send<P>(*core_, request, deadline, options, true, id, reader->number());
        if (status == base::Status::ok) {
            reader->opened(id);
        } else {
            reader->fail(status == base::Status::timed_out   ? Code::late
                         : status == base::Status::too_large ? Code::too_large
                                                             : Code::not_sent);
        }
        return StreamReader<P>{std::move(reader)};
    }

    // --- the session

    /// Connects anew if the connection has ended, whether or not any call has noticed that yet, and
    /// asks for the table. As message::Client::reconnect; throws Error as connect().
    base::Status reconnect(const base::Deadline& deadline);
    /// Ends the session in good order. What has no answer is told so by Code::closed.
    base::Status close(const base::Deadline& deadline);
    /// From now on it belongs to the calling thread.
    void adopt() noexcept;
    /// For a program's own loop: readable means, call poll(), until it is `empty`.
    [[nodiscard]] int descriptor();

    /// The procedures of the server and what it counted. Throws Error.
    [[nodiscard]] std::vector<ProcedureReport> procedures(const base::Deadline& deadline);
    [[nodiscard]] ClientStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    /// Why the connection is broken. Empty while it is not.
    [[nodiscard]] std::string failure() const;

  private:
    friend class detail::AsyncCore;
    [[nodiscard]] static Client connect_to(const connect::Address& address, ClientOptions options,
                                           const base::Deadline& deadline,
                                           std::size_t response_bytes);
    [[nodiscard]] static Code ended(message::Outcome outcome, bool is_sent) noexcept;
    explicit Client(std::unique_ptr<detail::ClientCore> core) noexcept;
    template <UnaryProcedure P, class Callback>
    base::Status submit_by(const typename P::Request& request, Callback callback,
                           const base::Deadline& deadline, const CallOptions& options, bool waits,
                           std::uint64_t* id) {
        using Submitted = detail::Submitted<Owned<typename P::Response>, Callback>;
        std::uint64_t number = 0;
        if (options.again) [[unlikely]] {
            const base::Status status =
                core_->submit_again(std::make_unique<detail::Again<P, Callback>>(
                                        request, std::move(callback), deadline, options),
                                    number);
            if (status == base::Status::ok && id != nullptr) *id = number;
            return status;
        }
        const base::Status status = detail::submit<P>(
            *core_, request, deadline, options, waits, number,
            [&](detail::Record& record) { Submitted::put(record, std::move(callback)); });
        if (status == base::Status::ok && id != nullptr) *id = number;
        return status;
    }

    std::unique_ptr<detail::ClientCore> core_;
};

}  // namespace millrace::rpc
