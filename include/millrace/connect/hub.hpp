// One thread, many connections, one thing to wait on: an event loop for programs that have none. It
// calls what belongs to a descriptor when that is readable, and timers when they are due; other
// threads post calls to it and stop it. docs/loops.md.
//
//     connect::Hub hub;
//     hub.add(listener.descriptor(), [&] { if (auto one = listener.try_accept()) use(*one); });
//     if (hub.run() == base::Status::closed) …      // somebody has called stop()
//
// It knows nothing of ends: whatever has a level-triggered descriptor (every end and listener of
// this library, sockets, pipes) can be in it, and every end can be in a loop of another kind.
//
// While something happens it does not sleep: for a while (Options::wait) it looks at the
// descriptors again and again, as whoever was just active often is again. Then it sleeps in the
// kernel. A quiet connection costs nothing but its memory: what is looked at is one epoll.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::connect {

/// Belongs to the thread that made it, or to the one that adopt() was called in since: that thread
/// alone may call what is not said to be for any. Another one that does gets an Error
/// (invalid_argument) that says so. Not movable: calls refer to it.
class Hub : public base::Executor {
  public:
    struct Options {
        /// How long it goes on looking before it sleeps.
        base::WaitPolicy wait{};
    };
    /// Throws Error (resource_exhausted): no more descriptors.
    explicit Hub(const Options& options);
    Hub();
    Hub(const Hub&) = delete;
    Hub& operator=(const Hub&) = delete;
    /// Destroys the calls, and with them the tasks that were spawned in it.
    ~Hub() override;

    /// Calls `call` whenever `descriptor` is readable: again and again, until it is not. It must
    /// stay open until it is removed. `call` may add and remove whatever it likes, itself included;
    /// what it throws comes out of turn() or run(), and the hub goes on behind it. Throws Error
    /// (invalid_argument: it is no descriptor that can be waited for, or in this hub already).
    Id add(int descriptor, Call call) override;
    /// As add, for the descriptor of an end of this library's, whose try_ calls `call` makes: once
    /// it was readable, it may be called without a look whether it still is, so that what comes
    /// next is found in memory, without a system call. The kernel is asked each 10 us all the same.
    Id add_end(int descriptor, Call call);
    /// Calls `call` once, at that time or soon after.
    Id at(base::Clock::time_point time, Call call) override;
    Id after(std::chrono::nanoseconds delay, Call call);
    /// Calls `call` each `period`, the first time after one. Times that were missed are left out.
    Id every(std::chrono::nanoseconds period, Call call);
    /// It is not called any more, and what it holds is destroyed: at once, or behind the call that
    /// is under way. False: there is no such thing (any more). A destructor that calls it in
    /// another thread ends the program, by an Error that says so.
    bool remove(Id id) override;
    /// Gives a descriptor or timer and its call to another hub of this thread (which another thread
    /// may adopt() then). Throws Error as add, then it stays here; not_found.
    Id move_to(Hub& other, Id id);
    /// Descriptors and timers.
    [[nodiscard]] std::size_t size() const;

    /// Makes at most `budget` calls of those that are due. Never sleeps. How many it made.
    std::size_t turn(std::size_t budget = 64);
    /// Waits until something is due: spins, yields, sleeps, as Options::wait says. `ok`: call
    /// turn(); `timed_out`; `cancelled`; `closed`: it was stopped.
    base::Status rest(const base::Deadline& deadline);
    /// Turns and rests until it is stopped (`closed`), or `timed_out`, or `cancelled`.
    base::Status run(const base::Deadline& deadline = base::Deadline::never());

    /// Calls `call` in the hub's thread, soon. Any thread; wakes it at once. Calls of one thread
    /// are made in their order.
    void post(Call call) override;
    /// Ends rest() and run() at once, now or when they are called next, once. Any thread, and
    /// signal handlers.
    void stop() noexcept;

    /// From now on it belongs to the calling thread.
    void adopt() noexcept;
    /// This is a child made by fork, to which the hub does not belong: its calls throw Error.
    [[nodiscard]] bool is_copy() const noexcept;
    /// It belongs to the calling thread. Any thread.
    [[nodiscard]] bool is_current() const noexcept override;
    /// Readable when something is due: for a hub within another loop, which calls turn() then.
    [[nodiscard]] int descriptor();

    struct Stats {
        std::uint64_t calls = 0;   ///< made
        std::uint64_t looks = 0;   ///< at the descriptors: system calls
        std::uint64_t sleeps = 0;  ///< of these, those that slept
    };
    /// Its statistics page ("hub") has the same, how many members it has, and a histogram of how
    /// long turns take that make calls: by that much the others of its loop come late.
    [[nodiscard]] Stats stats() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::connect
