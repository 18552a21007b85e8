// Accepting in a thread of its own, for a thread that serves many and shall not be kept by those
// who come: a handshake and what is set up behind it take some hundred microseconds of system
// calls, and taking over what came of them takes a few. docs/loops.md.
//
//     auto listener = message::Listener::listen(connect::Address::parse(":7000"));
//     const auto take = [&](message::Channel channel) { channels.add(std::move(channel)); };
//     connect::Acceptor acceptor{listener, hub, take};
//
// For every listener of this library: it has a descriptor, and a call that gives an end, or
// nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"

namespace millrace::connect {

struct AcceptorOptions {
    /// What the scheduler makes of its thread.
    enum class Priority : unsigned char {
        /// As of the thread that makes it.
        normal,
        /// It runs where nobody else wants the processor (SCHED_IDLE): a thread that is woken on
        /// its processor has it at once. For processors that are left now and then. Where they
        /// never are, each step of accepting may wait for a second, and others meanwhile for what
        /// it has locked, the allocator for one.
        background,
    };
    Priority priority = Priority::normal;
    /// The cores that its thread runs on; none: those of the thread that makes it. Who has pinned
    /// that one wants to name others.
    std::vector<int> cores{};
    /// When so many ends wait for the executor's thread, it accepts no more until they are taken.
    std::size_t most_waiting = 64;
};

/// Made and destroyed in the thread of the executor that it hands ends to. Not movable.
class Acceptor {
  public:
    /// Starts its thread, which calls `listener.try_accept()` whenever the listener's descriptor is
    /// readable. Each end is given to `take(End)` in the thread of `to`, in the order in which they
    /// came. An end with a descriptor() was asked for it before, and has fallen asleep if it can:
    /// both take system calls. What `try_accept` throws, and `take`, comes out of `to` as what a
    /// posted call throws, and accepting goes on. From now on the listener belongs to that thread;
    /// it and `to` must outlive this object. Throws Error (invalid_argument: it may not run on
    /// these cores; resource_exhausted: no more threads, no more descriptors).
    template <class Listener, class Take>
    Acceptor(Listener& listener, base::Executor& to, Take take, const AcceptorOptions& options = {})
        : Acceptor{listener.descriptor(), [&listener] { return listener.try_accept(); }, to,
                   std::move(take), options} {}
    /// The same for listeners whose ends are accepted by another call, such as those of flow
    /// queues: `try_accept()` gives a std::optional of an end whenever `descriptor` is readable.
    template <class TryAccept, class Take>
    Acceptor(int descriptor, TryAccept try_accept, base::Executor& to, Take take,
             const AcceptorOptions& options = {})
        : Acceptor{descriptor, to, options,
                   steps_of(std::make_shared<TryAccept>(std::move(try_accept)),
                            std::make_shared<Take>(std::move(take)))} {}
    Acceptor(const Acceptor&) = delete;
    Acceptor& operator=(const Acceptor&) = delete;
    /// Waits for the step of accepting that is under way, and ends the thread. What waits to be
    /// taken is destroyed; nothing is called any more. In a child that was made by fork it does
    /// nothing: there is no such thread.
    ~Acceptor();

  private:
    using Call = base::Executor::Call;
    /// Accepts one, and gives the call that hands it over; an empty one: there is nobody.
    using Step = std::function<Call()>;

    Acceptor(int descriptor, base::Executor& to, const AcceptorOptions& options, Step step);

    template <class TryAccept, class Take>
    static Step steps_of(std::shared_ptr<TryAccept> try_accept, std::shared_ptr<Take> take) {
        return [try_accept = std::move(try_accept), take = std::move(take)]() -> Call {
            auto accepted = (*try_accept)();
            if (!accepted) return {};
            if constexpr (requires { accepted->descriptor(); }) (void)accepted->descriptor();
            if constexpr (requires { accepted->fall_asleep(); }) accepted->fall_asleep();
            using End = std::remove_reference_t<decltype(*accepted)>;
            return [take, end = std::make_shared<End>(std::move(*accepted))] {
                (*take)(std::move(*end));
            };
        };
    }

    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace millrace::connect
