// Hub: an epoll of descriptors, a heap of timers and a queue of posted calls.
#include "millrace/connect/hub.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "descriptor.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/statistics.hpp"
#include "nesting.hpp"
#include "timer.hpp"
#include "waiting.hpp"

namespace millrace::connect {

using base::Clock;
using base::Status;

namespace {

/// epoll_event::data of what is no member.
constexpr std::uint64_t bell_id = 0;
constexpr std::uint64_t timer_id = 1;
constexpr std::uint64_t first_id = 2;

/// What other processes see of a hub. Null, and a line in the log: there is no memory for it.
[[nodiscard]] std::unique_ptr<base::StatisticsPage> page_of_hub() noexcept {
    using enum base::FigureKind;
    constexpr base::Figure figures[] = {{"calls", counter},
                                        {"looks", counter},
                                        {"sleeps", counter},
                                        {"members", gauge},
                                        {"ns of a turn", histogram}};
    try {
        return std::make_unique<base::StatisticsPage>("hub", figures);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "connect", "a hub has no statistics page: {}",
                  error.what());
        return nullptr;
    }
}

/// Times beyond the clock's are never.
[[nodiscard]] Clock::time_point later(std::chrono::nanoseconds delay) noexcept {
    const auto now = Clock::now();
    return delay >= Clock::time_point::max() - now ? Clock::time_point::max() : now + delay;
}

}  // namespace

struct Hub::State {
    explicit State(const Options& chosen) : options{chosen} {}

    struct Member {
        int descriptor = -1;  ///< -1: a timer
        bool is_end = false;  ///< may be called though its descriptor is not readable
        Call call;
        Clock::time_point due{};
        std::chrono::nanoseconds period{0};  ///< 0: once
    };
    using Timers = std::multimap<Clock::time_point, std::uint64_t>;

    Options options;
    std::atomic<std::thread::id> owner{std::this_thread::get_id()};
    Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
    Descriptor bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    Descriptor timer{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};

    /// Members are found by number, so that an event of one that was removed meanwhile hits nobody.
    std::unordered_map<std::uint64_t, std::shared_ptr<Member>> members;
    Timers timers;
    Clock::time_point alarm = Clock::time_point::max();  ///< what the timer is set to
    std::uint64_t next_id = first_id;

    /// Events that were taken from the kernel and are not served yet.
    std::array<epoll_event, 64> events{};
    std::size_t served = 0;
    std::size_t taken = 0;

    /// Ends that were readable when the kernel was asked last, or called since.
    std::vector<std::uint64_t> hot;
    std::uint64_t asked = 0;  ///< when, in ticks
    const std::uint64_t hot_ticks = base::ticks_in(std::chrono::microseconds{10});

    std::mutex mutex;  ///< of posted
    std::deque<Call> posted;
    std::atomic<bool> has_posted{false};
    std::atomic<bool> stopping{false};
    std::atomic<bool> asleep{false};
    std::atomic<bool> nested{false};  ///< another loop waits for the descriptor
    Stats stats;
    const std::unique_ptr<base::StatisticsPage> page = page_of_hub();
    std::uint64_t turn_began = 0;  ///< in ticks; 0: not looked at yet
    const double ns_per_tick =
        1e6 / static_cast<double>(base::ticks_in(std::chrono::milliseconds{1}));

    [[nodiscard]] bool is_current() const noexcept {
        return owner.load(std::memory_order_relaxed) == std::this_thread::get_id();
    }
    void require_owner(const char* attempted) const {
        if (!epoll.valid()) base::refuse_copy(attempted, "a hub");
        if (is_current()) return;
        throw base::Error{base::ErrorCode::invalid_argument, attempted, "a hub",
                          "it belongs to another thread",
                          "post() the call to it, or let this thread adopt() it"};
    }
    void watch(int descriptor, std::uint64_t id) const {
        epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
        if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return;
        const int error = errno;
        if (error == EEXIST || error == EPERM || error == EBADF || error == ELOOP) {
            throw base::Error{
                base::ErrorCode::invalid_argument, "add a descriptor to a hub",
                fmt::format("descriptor {}", descriptor),
                error == EEXIST ? std::string{"it is in this hub already"}
                                : base::describe_errno(error),
                "add sockets, pipes and what descriptor() of an end gives, each once"};
        }
        if (error == EINVAL) {
            throw base::Error{base::ErrorCode::resource_exhausted, "add a descriptor to a hub",
                              fmt::format("descriptor {}", descriptor), nested_too_often,
                              remedy_for_nesting};
        }
        base::throw_errno(error, "add a descriptor to a hub",
                          fmt::format("descriptor {}", descriptor),
                          "raise fs.epoll.max_user_watches (sysctl)");
    }
    Id add(int descriptor, Call call, bool is_end);
    Id insert(Member member) {
        const std::uint64_t id = next_id++;
        const auto added = members.emplace(id, std::make_shared<Member>(std::move(member))).first;
        const Member& its = *added->second;
        try {
            if (its.descriptor < 0) {
                timers.emplace(its.due, id);
            } else {
                watch(its.descriptor, id);
            }
        } catch (...) {
            members.erase(added);
            throw;
        }
        // The other loop may be about to sleep, without another turn of this one.
        if (nested.load(std::memory_order_relaxed)) set_alarm();
        return Id{id};
    }
    void drop_timer(const Member& member, std::uint64_t id) noexcept {
        const auto [begin, end] = timers.equal_range(member.due);
        const auto at =
            std::find_if(begin, end, [&](const auto& entry) { return entry.second == id; });
        if (at != end) timers.erase(at);
    }
    /// Behind a sequentially consistent store of what there is to do: wakes who sleeps.
    void wake() noexcept {
        if (asleep.exchange(false, std::memory_order_seq_cst) ||
            nested.load(std::memory_order_relaxed)) {
            ring();
        }
    }
    void ring() const noexcept {
        const std::uint64_t one = 1;
        (void)!write(bell.get(), &one, sizeof one);
        base::count_system_call();
    }
    [[nodiscard]] bool has_due_timer() const noexcept {
        return !timers.empty() && timers.begin()->first <= Clock::now();
    }
    /// Something is due, as far as can be said without the kernel.
    [[nodiscard]] bool has_work() const noexcept {
        return served != taken || has_posted.load(std::memory_order_seq_cst) || has_due_timer();
    }
    void take_events(int limit_ms) noexcept {
        if (served != taken) return;
        served = taken = 0;
        const int count =
            epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), limit_ms);
        base::count_system_call();
        ++stats.looks;
        if (count > 0) taken = static_cast<std::size_t>(count);
        hot.clear();
        turn_began = asked = base::ticks();
        if (page != nullptr) {
            page->set(
                std::array{stats.calls, stats.looks, stats.sleeps, std::uint64_t{members.size()}});
        }
    }
    /// Takes the ends that were active lately for readable, for a moment. False: the kernel's turn.
    [[nodiscard]] bool take_hot() noexcept {
        if (hot.empty()) return false;
        turn_began = base::ticks();
        if (turn_began - asked >= hot_ticks) return false;
        served = 0;
        taken = std::min(hot.size(), events.size());
        for (std::size_t i = 0; i != taken; ++i) events[i].data.u64 = hot[i];
        hot.clear();
        return true;
    }
    /// How long those wait at most whose turn comes behind this one.
    void note_turn() noexcept {
        const std::uint64_t took = base::ticks() - turn_began;
        if (page != nullptr) {
            page->histogram(0).record(
                static_cast<std::uint64_t>(static_cast<double>(took) * ns_per_tick));
        }
    }
    /// The kernel wakes us for the next timer.
    void set_alarm() noexcept {
        const auto next = timers.empty() ? Clock::time_point::max() : timers.begin()->first;
        if (next == alarm) return;
        set_timer(timer.get(), next == Clock::time_point::max() ? no_alarm : next - Clock::now());
        alarm = next;
    }
    void make(const std::shared_ptr<Member>& member) {
        ++stats.calls;
        member->call();
    }
    bool serve_posted() {
        if (!has_posted.load(std::memory_order_acquire)) return false;
        Call call;
        {
            const std::lock_guard guard{mutex};
            if (posted.empty()) return false;
            call = std::move(posted.front());
            posted.pop_front();
            if (posted.empty()) has_posted.store(false, std::memory_order_relaxed);
        }
        ++stats.calls;
        call();
        return true;
    }
    bool serve_timer() {
        if (!has_due_timer()) return false;
        // It goes back where it comes again: want of memory does not end it.
        auto timer = timers.extract(timers.begin());
        const std::uint64_t id = timer.mapped();
        const std::shared_ptr<Member> member = members.at(id);
        if (member->period.count() > 0) {
            const auto missed = (Clock::now() - member->due) / member->period;
            member->due += (missed + 1) * member->period;
            timer.key() = member->due;
            timers.insert(std::move(timer));
        } else {
            members.erase(id);
        }
        make(member);
        return true;
    }
    bool serve_event() {
        while (served != taken) {
            const std::uint64_t id = events[served++].data.u64;
            if (id == bell_id || id == timer_id) {
                std::uint64_t count = 0;
                (void)!read(id == bell_id ? bell.get() : timer.get(), &count, sizeof count);
                base::count_system_call();
                if (id == timer_id) alarm = Clock::time_point::max();
                continue;
            }
            const auto found = members.find(id);
            if (found == members.end()) continue;
            if (found->second->is_end) hot.push_back(id);
            make(std::shared_ptr<Member>{found->second});
            return true;
        }
        return false;
    }
};

Hub::Hub(const Options& options) : state_{std::make_unique<State>(options)} {
    if (!state_->epoll.valid() || !state_->bell.valid() || !state_->timer.valid()) {
        base::throw_errno(errno, "make a hub", "epoll, eventfd and timer",
                          "raise the limit of open files (ulimit -n)");
    }
    state_->hot.reserve(state_->events.size());
    state_->watch(state_->bell.get(), bell_id);
    state_->watch(state_->timer.get(), timer_id);
}
Hub::Hub() : Hub{Options{}} {}
Hub::~Hub() {
    adopt();
    // What goes with a call may take others back: it finds a hub that is whole, and empty.
    while (!state_->members.empty() || !state_->posted.empty()) {
        const auto members = std::exchange(state_->members, {});
        const auto posted = std::exchange(state_->posted, {});
        state_->timers.clear();
    }
}

Hub::Id Hub::add(int descriptor, Call call) {
    return state_->add(descriptor, std::move(call), false);
}
Hub::Id Hub::add_end(int descriptor, Call call) {
    return state_->add(descriptor, std::move(call), true);
}

Hub::Id Hub::State::add(int descriptor, Call call, bool is_end) {
    require_owner("add a descriptor to a hub");
    if (descriptor < 0) {
        throw base::Error{base::ErrorCode::invalid_argument, "add a descriptor to a hub",
                          fmt::format("descriptor {}", descriptor), "it is none",
                          "was what it belongs to made in the parent of this process?"};
    }
    return insert({.descriptor = descriptor, .is_end = is_end, .call = std::move(call)});
}

Hub::Id Hub::at(Clock::time_point time, Call call) {
    state_->require_owner("set a timer of a hub");
    return state_->insert({.call = std::move(call), .due = time});
}

Hub::Id Hub::after(std::chrono::nanoseconds delay, Call call) {
    return at(later(delay), std::move(call));
}

Hub::Id Hub::every(std::chrono::nanoseconds period, Call call) {
    state_->require_owner("set a timer of a hub");
    if (period.count() <= 0) {
        throw base::Error{base::ErrorCode::invalid_argument, "set a timer of a hub",
                          fmt::format("every {} ns", period.count()), "a period is longer than 0",
                          "for a call at each turn, post() it again each time"};
    }
    return state_->insert({.call = std::move(call), .due = later(period), .period = period});
}

bool Hub::remove(Id id) {
    // Destructors call this, also those of copies in a child made by fork.
    if (!is_copy()) state_->require_owner("remove a descriptor or timer from a hub");
    const auto number = static_cast<std::uint64_t>(id);
    const auto found = state_->members.find(number);
    if (found == state_->members.end()) return false;
    const State::Member& member = *found->second;
    if (member.descriptor < 0) {
        state_->drop_timer(member, number);
    } else {
        (void)epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, member.descriptor, nullptr);
    }
    // What goes with its call may take others back.
    const auto gone = state_->members.extract(found);
    return true;
}

Hub::Id Hub::move_to(Hub& other, Id id) {
    state_->require_owner("move a descriptor to another hub");
    const auto found = state_->members.find(static_cast<std::uint64_t>(id));
    if (found == state_->members.end()) {
        throw base::Error{base::ErrorCode::not_found, "move a descriptor to another hub",
                          fmt::format("member {}", static_cast<std::uint64_t>(id)),
                          "it is not in this hub", "was it removed?"};
    }
    // The call may be under way, and is needed here until it ends.
    other.state_->require_owner("move a descriptor to another hub");
    const Id moved = other.state_->insert(*found->second);
    remove(id);
    return moved;
}

std::size_t Hub::size() const {
    state_->require_owner("ask a hub for its size");
    return state_->members.size();
}

std::size_t Hub::turn(std::size_t budget) {
    State& hub = *state_;
    hub.require_owner("turn a hub");
    hub.turn_began = 0;
    if (hub.served == hub.taken && !hub.take_hot()) hub.take_events(0);
    if (hub.turn_began == 0) hub.turn_began = base::ticks();
    // Also behind a call that throws: another loop learns of what is left by the descriptor alone.
    struct Behind {
        State& hub;
        ~Behind() {
            if (!hub.nested.load(std::memory_order_relaxed)) return;
            hub.set_alarm();
            if (hub.has_work()) hub.ring();
        }
    };
    const Behind behind{hub};
    std::size_t calls = 0;
    bool some = true;
    while (some && calls < budget) {
        some = false;
        // One of each kind in turn, so that none of them starves the others.
        if (hub.serve_posted()) some = true, ++calls;
        if (calls < budget && hub.serve_timer()) some = true, ++calls;
        if (calls < budget && hub.serve_event()) some = true, ++calls;
    }
    if (calls != 0) hub.note_turn();
    return calls;
}

Status Hub::rest(const base::Deadline& deadline) {
    State& hub = *state_;
    hub.require_owner("rest in a hub");

    class Sleeper final : public base::Parker {
      public:
        explicit Sleeper(State& state) : hub_{&state} {}
        void prepare() override {
            hub_->set_alarm();
            hub_->asleep.store(true, std::memory_order_seq_cst);
        }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
            // The bell rings for what is posted and for stop().
            ++hub_->stats.sleeps;
            if (cancellation != nullptr) {
                pollfd entry{.fd = hub_->epoll.get(), .events = POLLIN, .revents = 0};
                base::count_system_call();
                if (poll_for({&entry, 1}, limit, cancellation) > 0) hub_->take_events(0);
                return;
            }
            constexpr std::chrono::milliseconds longest{60'000};
            const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(
                std::min<std::chrono::nanoseconds>(limit, longest));
            hub_->take_events(static_cast<int>(milliseconds.count()));
        }
        void retract() override { hub_->asleep.store(false, std::memory_order_relaxed); }
        [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
            return std::chrono::nanoseconds::max();
        }

      private:
        State* hub_;
    };
    Sleeper sleeper{hub};
    // Then the look that comes with the sleep suffices.
    const base::WaitPolicy& policy = hub.options.wait;
    bool sleeps_at_once = policy.sleep && policy.spin.count() == 0 && policy.yield.count() == 0;
    const auto is_due = [&] {
        if (hub.stopping.load(std::memory_order_seq_cst) || hub.has_work()) return true;
        // Behind prepare() the kernel looks by itself.
        if (!hub.asleep.load(std::memory_order_relaxed) && !std::exchange(sleeps_at_once, false)) {
            hub.take_events(0);
        }
        return hub.served != hub.taken;
    };
    const Status status = base::wait_until(is_due, deadline, hub.options.wait, sleeper);
    if (status == Status::ok && hub.stopping.exchange(false, std::memory_order_acq_rel)) {
        return Status::closed;
    }
    return status;
}

Status Hub::run(const base::Deadline& deadline) {
    state_->require_owner("run a hub");
    for (;;) {
        if (state_->stopping.exchange(false, std::memory_order_acq_rel)) return Status::closed;
        if (turn() != 0) {
            if (deadline.cancelled()) return Status::cancelled;
            if (deadline.expired()) return Status::timed_out;
            continue;
        }
        const Status status = rest(deadline);
        if (status != Status::ok) return status;
    }
}

void Hub::post(Call call) {
    State& hub = *state_;
    {
        const std::lock_guard guard{hub.mutex};
        hub.posted.push_back(std::move(call));
        hub.has_posted.store(true, std::memory_order_seq_cst);
    }
    hub.wake();
}

void Hub::stop() noexcept {
    state_->stopping.store(true, std::memory_order_seq_cst);
    state_->wake();
}

void Hub::adopt() noexcept {
    state_->owner.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

bool Hub::is_current() const noexcept { return state_->is_current(); }

bool Hub::is_copy() const noexcept { return !state_->epoll.valid(); }

int Hub::descriptor() {
    state_->require_owner("put a hub into another loop");
    state_->nested.store(true, std::memory_order_relaxed);
    state_->set_alarm();
    if (state_->has_work()) state_->ring();
    return state_->epoll.get();
}

Hub::Stats Hub::stats() const noexcept { return state_->stats; }

}  // namespace millrace::connect
