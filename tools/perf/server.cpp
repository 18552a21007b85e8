// The side that serves: `millrace perf -s`.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cat/interruption.hpp"
#include "command_line/output.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/stream/socket.hpp"
#include "perf/perf.hpp"
#include "perf/run.hpp"
#include "workload/tcp_socket.hpp"

namespace millrace::tools {
namespace perf {
namespace {

using base::Deadline;
using base::Error;
using base::ErrorCode;
using base::Status;

Deadline soon() { return Deadline::after(patience).cancelled_by(interruption()); }

/// Somebody who has connected, and of whom it is not known yet what they want.
class Visitor {
  public:
    explicit Visitor(stream::Socket connected) : socket{std::move(connected)} {
        if (socket.receive(*said_, 0, stream::ReceiveFlags::wait_all) != Status::ok) over_ = true;
    }
    /// Nothing: not yet, or they went, see is_over().
    std::optional<Hello> look() {
        stream::Completion done;
        const Status status = socket.poll(done);
        if (status == Status::empty) {
            if (patience_.expired()) over_ = true;
            return std::nullopt;
        }
        if (status == Status::ok && done.status == Status::ok) {
            if (const auto hello = Hello::parse(*said_)) return hello;
        }
        over_ = true;
        return std::nullopt;
    }
    [[nodiscard]] bool is_over() const noexcept { return over_; }

  private:
    using Said = std::array<std::byte, sizeof(Hello)>;
    std::unique_ptr<Said> said_ = std::make_unique<Said>();
    Deadline patience_ = Deadline::after(patience);
    bool over_ = false;

  public:
    stream::Socket socket;  ///< goes before what it receives into
};

/// Whoever connected by TCP, as far as they have said what lane they are.
struct TcpVisitor {
    workload::Descriptor socket;
    Deadline deadline = Deadline::after(patience);

    std::optional<Hello> look() const {
        std::array<std::byte, sizeof(Hello)> said;
        if (::recv(socket.get(), said.data(), said.size(), MSG_PEEK | MSG_DONTWAIT) !=
            static_cast<ssize_t>(said.size())) {
            return std::nullopt;
        }
        (void)::recv(socket.get(), said.data(), said.size(), MSG_DONTWAIT);
        return Hello::parse(said);
    }
};

/// A test, from its plan on. Members go in reverse: the lanes first.
struct Test {
    explicit Test(stream::Socket asking) : control{std::move(asking)} {}

    stream::Socket control;
    std::uint64_t cookie = 0;
    workload::Descriptor tcp;                          ///< listens
    std::optional<stream::Listener> message_listener;  ///< for lanes of messages
    std::vector<TcpVisitor> tcp_visitors;
    std::optional<Run> run;
    bool started = false;
    Deadline lanes_due = soon();
};

class Server {
  public:
    Server(const PerfServerOptions& options, stream::SocketOptions chosen)
        : options_{chosen},
          one_off_{options.one_off},
          listener_{stream::Listener::listen(connect::Address::parse(options.address), chosen)} {}

    [[nodiscard]] const connect::Address& address() const noexcept { return listener_.address(); }

    /// Until it is interrupted, or one test was served.
    void serve() {
        while (!interruption().requested()) {
            const bool had_test = test_.has_value();
            rest();
            accept();
            meet_visitors();
            if (test_) proceed();
            if (one_off_ && had_test && !test_) return;
        }
    }

  private:
    void rest() {
        polled_.clear();
        polled_.push_back({listener_.descriptor(), POLLIN, 0});
        if (test_ && test_->tcp.get() >= 0 && !test_->started) {
            polled_.push_back({test_->tcp.get(), POLLIN, 0});
            for (const auto& visitor : test_->tcp_visitors) {
                polled_.push_back({visitor.socket.get(), POLLIN, 0});
            }
        }
        if (test_ && test_->message_listener && !test_->started) {
            polled_.push_back({test_->message_listener->descriptor(), POLLIN, 0});
        }
        // Visitors stay for a moment, and a stream that was asked for its descriptor is a slower
        // one; a test's end is seen by looking, too, rarely enough not to disturb it.
        const auto limit = !visitors_.empty()        ? std::chrono::milliseconds{1}
                           : test_ && test_->started ? std::chrono::milliseconds{20}
                                                     : look_interval;
        (void)::poll(polled_.data(), polled_.size(), static_cast<int>(limit.count()));
    }

    void accept() {
        const auto all_of = [this](stream::Listener& listener) {
            while (auto socket = listener.try_accept()) {
                visitors_.push_back(std::make_unique<Visitor>(std::move(*socket)));
            }
        };
        all_of(listener_);
        if (test_ && test_->message_listener && !test_->started) all_of(*test_->message_listener);
    }

    void meet_visitors() {
        for (auto& visitor : visitors_) {
            const auto hello = visitor->look();
            if (hello) {
                meet(std::move(visitor->socket), *hello);
                visitor.reset();
            } else if (visitor->is_over()) {
                visitor.reset();
            }
        }
        std::erase(visitors_, nullptr);
    }

    void meet(stream::Socket socket, const Hello& hello) {
        try {
            if (hello.lane == Hello::control) {
                begin(std::move(socket));
            } else if (test_ && test_->run && hello.cookie == test_->cookie) {
                test_->run->add(hello.lane, stream_lane(std::move(socket), options_.endpoint,
                                                        test_->run->stopping()));
            }
        } catch (const std::exception& error) {
            fmt::print(stderr, "millrace perf: {}\n", error.what());
        }
    }

    void refuse(stream::Socket& control, const std::string& why) {
        say(control, {{"error", why}}, soon());
        (void)control.close(soon());
    }

    void begin(stream::Socket control) {
        const auto said = hear(control, soon());
        if (test_) return refuse(control, "it serves another client; try again later");
        const auto plan = Plan::parse(said);
        if (!plan) return refuse(control, "it does not understand what is to be measured");
        if (const std::string wrong = plan->wrong(); !wrong.empty()) {
            return refuse(control, "it does not measure with " + wrong);
        }
        if (plan->tcp && address().kind() != connect::Address::Kind::tcp) {
            return refuse(control, "it listens on a Unix socket, and has no host for TCP");
        }
        fmt::print("{}: {} {}{}\n", control.peer_name(), plan->lanes(), plan->tcp ? "TCP " : "",
                   plan->lanes() == 1 ? "stream" : "streams");
        (void)output_arrived();
        test_.emplace(std::move(control));
        try {
            test_->cookie = random_();
            nlohmann::json answer{{"cookie", test_->cookie}};
            if (plan->tcp) {
                test_->tcp = workload::tcp_listen(address().host(), 0);
                answer["lanes_at"] = workload::tcp_port(test_->tcp);
            } else if (plan->lanes_come_elsewhere()) {
                answer["lanes_at"] = listen_for(*plan);
            }
            test_->run.emplace(*plan, false);
            say(test_->control, answer, soon());
        } catch (...) {
            test_.reset();
            throw;
        }
    }

    /// Begins to listen for lanes that are no byte streams. Returns where.
    nlohmann::json listen_for(const Plan& plan) {
        stream::SocketOptions chosen = options_;
        chosen.type = plan.type;
        const bool is_tcp = address().kind() == connect::Address::Kind::tcp;
        test_->message_listener = stream::Listener::listen(
            is_tcp ? connect::Address::tcp(address().host(), 0)
                   : connect::Address::unix_socket(address().path() + "-lanes"),
            chosen);
        const connect::Address& place = test_->message_listener->address();
        return is_tcp ? nlohmann::json(place.port()) : nlohmann::json(place.path());
    }

    void meet_tcp() {
        auto& visitors = test_->tcp_visitors;
        while (true) {
            workload::Descriptor socket{
                ::accept4(test_->tcp.get(), nullptr, nullptr, SOCK_CLOEXEC)};
            if (socket.get() < 0) break;
            visitors.push_back({std::move(socket)});
            pollfd more{test_->tcp.get(), POLLIN, 0};
            if (::poll(&more, 1, 0) != 1) break;
        }
        for (auto& visitor : visitors) {
            const auto hello = visitor.look();
            if (hello && hello->cookie == test_->cookie) {
                test_->run->add(hello->lane,
                                tcp_lane(std::move(visitor.socket), test_->run->stopping()));
            } else if (visitor.deadline.expired()) {
                visitor.socket = workload::Descriptor{};
            }
        }
        std::erase_if(visitors, [](const auto& visitor) { return visitor.socket.get() < 0; });
    }

    /// Goes on with the test as far as it can.
    void proceed() {
        try {
            Test& test = *test_;
            if (!test.started) {
                pollfd waiting{test.tcp.get(), POLLIN, 0};
                if (test.tcp.get() >= 0 &&
                    (::poll(&waiting, 1, 0) == 1 || !test.tcp_visitors.empty())) {
                    meet_tcp();
                }
                if (test.run->is_complete()) {
                    test.started = true;
                    test.run->start();
                    say(test.control, {{"started", true}}, soon());
                } else if (test.lanes_due.expired()) {
                    throw Error{ErrorCode::timed_out, "wait for streams", test.control.peer_name(),
                                "not all of them came", ""};
                }
                return;
            }
            if (!test.run->wait(base::Clock::now())) return test.run->require_progress();
            const Counts& mine = test.run->counts();
            say(test.control, mine.to_json(), soon());
            (void)hear(test.control, soon());
            (void)test.control.close(soon());
            for (std::uint32_t lane = 0; lane < test.run->plan().lanes(); ++lane) {
                fmt::print("stream {}: {} {} bytes in {:.2f} s\n", lane,
                           test.run->sends(lane) ? "sent" : "received", mine.lanes[lane].bytes,
                           mine.lanes[lane].seconds);
            }
            (void)output_arrived();
            test_.reset();
        } catch (const std::exception& error) {
            fmt::print(stderr, "millrace perf: {}\n", error.what());
            tell(error.what());
            test_.reset();
        }
    }

    /// The client of the test, why there will be none; if it still listens.
    void tell(const std::string& why) noexcept {
        try {
            test_->run->stop();
            refuse(test_->control, why);
        } catch (const std::exception&) {
            // It sees that the connection ends.
        }
    }

    stream::SocketOptions options_;
    bool one_off_;
    std::random_device seed_;
    std::mt19937_64 random_{(std::uint64_t{seed_()} << 32) | seed_()};
    std::optional<Test> test_;
    std::vector<std::unique_ptr<Visitor>> visitors_;
    std::vector<pollfd> polled_;
    stream::Listener listener_;
};

}  // namespace
}  // namespace perf

int run_perf_server(const PerfServerOptions& options) {
    const Interruption interruptible;
    stream::SocketOptions chosen;
    chosen.endpoint = connect::Endpoint::open(options.device);
    if (!options.secret_file.empty()) {
        chosen.admission.secret = connect::read_secret_file(options.secret_file);
    }
    perf::Server server{options, chosen};
    fmt::print("listening on {}\n", server.address().to_string());
    (void)output_arrived();
    server.serve();
    return 0;
}

}  // namespace millrace::tools
