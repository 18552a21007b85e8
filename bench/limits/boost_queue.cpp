// Two threads on two cores. Both spin; each wait ends when the other thread has failed or time is
// up.
#include "boost_queue.hpp"

#include "millrace/base/error.hpp"

#if !defined(MILLRACE_BOOST_LOCKFREE)

namespace millrace::bench {
namespace {

[[noreturn]] void lacks_boost() {
    throw base::Error{base::ErrorCode::not_found, "measure boost::lockfree::spsc_queue",
                      "this program", "it was built without Boost",
                      "install: libboost-dev, and run make build again"};
}

}  // namespace

double boost_round_trip(std::uint64_t /*round_trips*/) { lacks_boost(); }
double boost_item_rate(std::size_t /*ring_bytes*/, std::uint64_t /*items*/) { lacks_boost(); }

}  // namespace millrace::bench

#else

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

#include <boost/lockfree/spsc_queue.hpp>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::bench {
namespace {

/// What both threads look at while they wait.
class Run {
  public:
    template <class Ready>
    void spin_until(Ready&& ready) {
        for (std::uint32_t turn = 1; !ready(); ++turn) {
            base::pause();
            if ((turn & 1023U) == 0 && (failed_.load(std::memory_order_relaxed) || end_.expired()))
                [[unlikely]] {
                throw base::Error{base::ErrorCode::timed_out, "measure two threads",
                                  "a thread's wait", "the other thread did not answer in time",
                                  "see whether something else uses the cores"};
            }
        }
    }
    void fail() noexcept { failed_.store(true, std::memory_order_relaxed); }

  private:
    std::atomic<bool> failed_{false};
    base::Deadline end_ = base::Deadline::after(std::chrono::seconds{20});
};

/// The first thread is the calling one. Throws what either throws.
double run_threads(const std::function<double(Run&)>& first,
                   const std::function<void(Run&)>& second) {
    return run_alone([&] {
        Run run;
        std::atomic<bool> started{false};
        std::exception_ptr failure;
        const int core = two_cores().second;
        std::thread other{[&] {
            try {
                base::pin_this_thread(core);
                started.store(true, std::memory_order_release);
                second(run);
            } catch (...) {
                failure = std::current_exception();
                run.fail();
            }
        }};
        double result = 0;
        std::exception_ptr own;
        try {
            run.spin_until([&] { return started.load(std::memory_order_acquire); });
            result = first(run);
        } catch (...) {
            own = std::current_exception();
            run.fail();
        }
        other.join();
        if (failure) std::rethrow_exception(failure);
        if (own) std::rethrow_exception(own);
        return result;
    });
}

}  // namespace

double boost_round_trip(std::uint64_t round_trips) {
    using Message = std::array<std::byte, 64>;
    using Queue = boost::lockfree::spsc_queue<Message>;
    const Windows windows{round_trips};
    Queue there{4096};
    Queue back{4096};
    return run_threads(
        [&](Run& run) {
            Message out{};
            Message in{};
            return median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), out.size(), number);
                run.spin_until([&] { return there.push(out); });
                run.spin_until([&] { return back.pop(in); });
                require_intact(stamped(in.data(), in.size(), number), "a message through Boost");
                keep(read_all(in.data(), in.size()));
            });
        },
        [&](Run& run) {
            Message out{};
            Message in{};
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                run.spin_until([&] { return there.pop(in); });
                require_intact(stamped(in.data(), in.size(), number), "a message through Boost");
                keep(read_all(in.data(), in.size()));
                stamp(out.data(), out.size(), number);
                run.spin_until([&] { return back.push(out); });
            }
        });
}

double boost_item_rate(std::size_t ring_bytes, std::uint64_t items) {
    const Windows windows{items};
    boost::lockfree::spsc_queue<std::uint64_t> queue{ring_bytes / sizeof(std::uint64_t)};
    return run_threads(
        [&](Run& run) {
            return 1e9 / median_step(windows, [&](std::uint64_t number) {
                       run.spin_until([&] { return queue.push(number); });
                   });
        },
        [&](Run& run) {
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                std::uint64_t item = 0;
                run.spin_until([&] { return queue.pop(item); });
                require_intact(item == number, "an item through Boost");
            }
        });
}

}  // namespace millrace::bench

#endif
