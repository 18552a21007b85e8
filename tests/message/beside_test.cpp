// What a server serves beside its clients: as soon as its descriptor is readable, also where the
// server sleeps, and while clients keep it busy.
#include <gtest/gtest.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message {
namespace {

base::Deadline in_time() { return base::Deadline::after(std::chrono::seconds{30}); }

/// An eventfd that is served beside a server's clients, which counts what was written to it.
class Beside {
  public:
    explicit Beside(base::WaitPolicy wait)
        : event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)}, server_{[&] {
              ServerOptions options;
              options.wait = wait;
              options.transports = {connect::Transport::rc, connect::Transport::tcp};
              return Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
          }()} {
        server_.serve_beside(event_, [this] {
            std::uint64_t count = 0;
            if (::read(event_, &count, sizeof count) != sizeof count) return false;
            served_ += count;
            return true;
        });
        thread_ = std::thread{[this] {
            server_.adopt();
            (void)server_.serve([](Request& request) { (void)request.answer(request.payload()); },
                                in_time());
        }};
    }
    ~Beside() {
        server_.stop();
        thread_.join();
        server_.adopt();
        ::close(event_);
    }
    Server& server() { return server_; }
    /// Whether it is served in time.
    bool asks() {
        const std::uint64_t before = served_;
        const std::uint64_t one = 1;
        if (::write(event_, &one, sizeof one) != sizeof one) return false;
        const auto deadline = in_time();
        while (served_ == before) {
            if (deadline.expired()) return false;
            std::this_thread::yield();
        }
        return true;
    }

  private:
    int event_;
    std::atomic<std::uint64_t> served_{0};
    Server server_;
    std::thread thread_;
};

TEST(ServedBeside, IsServedByAServerThatSleeps) {
    Beside beside{base::WaitPolicy::blocking()};
    const auto deadline = in_time();
    for (int i = 0; i < 20; ++i) {
        const std::uint64_t sleeps = beside.server().stats().sleeps;
        ASSERT_TRUE(beside.asks());
        // It sleeps again, and is woken by the next one.
        while (beside.server().stats().sleeps == sleeps) ASSERT_FALSE(deadline.expired());
    }
}

TEST(ServedBeside, IsServedByAServerThatPollsAndByOneThatIsBusy) {
    Beside beside{base::WaitPolicy::polling()};
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(beside.asks());
    std::atomic<bool> ends{false};
    std::thread client{[&] {
        Client one = Client::connect(beside.server().address(), {}, in_time());
        std::byte byte{};
        std::vector<std::byte> answer;
        while (!ends) {
            ASSERT_EQ(one.call({&byte, 1}, answer, in_time()), Outcome::ok);
        }
    }};
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(beside.asks());
    ends = true;
    client.join();
}

}  // namespace
}  // namespace millrace::message
