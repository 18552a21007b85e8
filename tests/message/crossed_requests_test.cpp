// Requests of one client or port, crossed with all that may be done with them: they go alone,
// several at a time and in batches, their answers come at once, late and in any order, and are
// taken by a call that looks, or by the one who asks for that number; some are cancelled, or given
// up at a deadline. By seeded schedules, in one thread: each answer is that of its request, is
// handed out once, and to nobody whose request was given up.
//
// MILLRACE_TEST_SEED=N MILLRACE_TEST_ROUNDS=1 plays one schedule again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/schedules.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;

/// One schedule. `End`: Client or Port.
template <class End>
class CrossedRequests {
  public:
    /// `turn()` runs what the end needs besides the server.
    CrossedRequests(End& end, Server& server, std::uint64_t seed, std::function<void()> turn)
        : end_{end}, server_{server}, random_{seed}, turn_{std::move(turn)} {}

    /// What went wrong, or nothing.
    std::string play(std::size_t steps) {
        for (std::size_t i = 0; i != steps && failure_.empty(); ++i) step();
        if constexpr (is_client) end_.end_batch();
        const Deadline deadline = patience();
        while (failure_.empty() && (!open_.empty() || end_.outstanding() != 0)) {
            serve();
            while (!late_.empty()) give_one();
            check(end_.poll(taking()), {Status::ok, Status::empty}, "poll");
            if (deadline.expired()) return std::to_string(open_.size()) + " are never answered";
        }
        return failure_;
    }

  private:
    static constexpr bool is_client = std::is_same_v<End, Client>;

    void step() {
        switch (random_() % 12) {
            case 0:
            case 1: submit(); break;
            case 2: submit_several(); break;
            case 3: toggle_batch(); break;
            case 4: check(end_.poll(taking()), {Status::ok, Status::empty}, "poll"); break;
            case 5: wait(); break;
            case 6: ask_for_one(); break;
            case 7: call_too_late(); break;
            case 8: cancel_one(); break;
            case 9:
                if (!late_.empty()) give_one();
                break;
            default: serve();
        }
    }

    [[nodiscard]] Bytes next_request() {
        const std::size_t size = random_() % 16 == 0 ? random_() % 30'000 : random_() % 300;
        return content(3, number_++, size);
    }
    void submit() {
        const Bytes request = next_request();
        std::uint64_t id = 0;
        const Status status = end_.submit(request, id);
        check(status, {Status::ok, Status::full}, "submit");
        if (status == Status::ok) opened(id, request);
    }
    void submit_several() {
        if constexpr (is_client) {
            std::vector<Bytes> requests(random_() % 5);
            for (Bytes& request : requests) request = content(3, number_++, random_() % 64);
            std::uint64_t first = 0;
            const BatchResult sent = end_.submit_several(
                requests.size(), 64,
                [&](std::size_t i, std::span<std::byte> room) {
                    std::ranges::copy(requests[i], room.begin());
                    return requests[i].size();
                },
                first);
            check(sent.status, {Status::ok, Status::full}, "submit_several");
            for (std::size_t i = 0; i != sent.count; ++i) opened(first + i, requests[i]);
        }
    }
    void toggle_batch() {
        if constexpr (is_client) {
            batches_ ? end_.end_batch() : end_.begin_batch();
            batches_ = !batches_;
        }
    }
    void wait() {
        // With nothing outstanding it says so, or waits for room.
        check(end_.wait(taking(), Deadline::now()), {Status::ok, Status::empty, Status::timed_out},
              "wait");
    }
    void ask_for_one() {
        if (open_.empty()) return;
        const auto one = any(open_);
        const std::uint64_t id = one->first;
        const Bytes expected = one->second;
        Bytes got;
        const Outcome outcome = end_.answer_to(
            id,
            [&](std::span<const std::byte> answer) { got.assign(answer.begin(), answer.end()); },
            Deadline::now());
        open_.erase(id);
        if (outcome == Outcome::timed_out) {
            given_up_.insert(id);
        } else if (outcome != Outcome::ok || got != expected) {
            fail("answer_to " + std::to_string(id) + ": " + std::string{name_of(outcome)} +
                 (outcome == Outcome::ok ? ", and another's answer" : ""));
        }
    }
    void call_too_late() {
        Bytes answer;
        if (end_.call(next_request(), answer, Deadline::now()) != Outcome::timed_out) {
            fail("a call whose deadline was over");
        }
    }
    void cancel_one() {
        if (open_.empty()) return;
        const std::uint64_t id = any(open_)->first;
        if (!end_.cancel(id)) fail("cancel " + std::to_string(id) + ": there is none");
        given_up_.insert(id);
        open_.erase(id);
    }
    void serve() {
        (void)server_.turn([&](Request& request) {
            if (random_() % 3 == 0) {
                const auto payload = request.payload();
                late_.emplace_back(Bytes{payload.begin(), payload.end()}, request.defer());
            } else {
                (void)request.answer(request.payload());
            }
        });
        turn_();
    }
    void give_one() {
        const auto one = any(late_);
        (void)one->second.answer(one->first);
        late_.erase(one);
    }

    void opened(std::uint64_t id, const Bytes& request) {
        if (!open_.emplace(id, request).second) fail("a second " + std::to_string(id));
    }
    [[nodiscard]] auto taking() {
        return [this](const Answer& answer) {
            const std::string who = "the answer to " + std::to_string(answer.id);
            const auto found = open_.find(answer.id);
            if (given_up_.contains(answer.id)) {
                fail(who + ", which was given up");
            } else if (found == open_.end()) {
                fail(who + ", which nobody asked, or which had one");
            } else if (answer.outcome != Outcome::ok ||
                       !std::ranges::equal(answer.payload, found->second)) {
                fail(who + " is another's: " + std::string{name_of(answer.outcome)});
            } else {
                open_.erase(found);
            }
        };
    }
    template <class Container>
    [[nodiscard]] auto any(Container& container) {
        return std::next(container.begin(),
                         static_cast<std::ptrdiff_t>(random_() % container.size()));
    }
    void check(Status status, std::initializer_list<Status> allowed, const char* what) {
        if (std::find(allowed.begin(), allowed.end(), status) != allowed.end()) return;
        fail(std::string{what} + " answers " + std::string{name_of(status)});
    }
    void fail(const std::string& why) {
        if (failure_.empty()) failure_ = why;
    }

    End& end_;
    Server& server_;
    std::mt19937_64 random_;
    std::function<void()> turn_;
    std::map<std::uint64_t, Bytes> open_;
    std::set<std::uint64_t> given_up_;
    std::vector<std::pair<Bytes, Reply>> late_;
    std::uint64_t number_ = 0;
    bool batches_ = false;
    std::string failure_;
};

/// A small window and a small ring, so that both are full now and then.
constexpr std::uint32_t window = 6;
constexpr std::size_t ring_bytes = std::size_t{8} << 10;

class RequestsOf : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, RequestsOf, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(RequestsOf, AClientMeetInEveryWay) {
    test::play_schedules(6, 300, [](std::uint64_t seed) {
        ServerOptions chosen = options();
        chosen.ring_bytes = ring_bytes;
        Server server = Server::listen(unique_address(), chosen);
        ClientOptions its;
        its.window = window;
        its.ring_bytes = ring_bytes;
        Client client = join_in_turns(server, [&] {
            return Client::connect(server.address(), options_of_client(its), patience());
        });
        return CrossedRequests<Client>{client, server, seed, [] {}}.play(400);
    });
}

class RequestsThrough : public testing::TestWithParam<Polling> {};
INSTANTIATE_TEST_SUITE_P(Every, RequestsThrough, testing::Values(Polling::flag, Polling::dense),
                         [](const auto& polling) { return std::string{name_of(polling.param)}; });

TEST_P(RequestsThrough, APortMeetInEveryWay) {
    test::play_schedules(20, 1000, [](std::uint64_t seed) {
        ServerOptions chosen;
        chosen.polling = GetParam();
        chosen.ring_bytes = ring_bytes;
        Server server = Server::listen(unique_address(), chosen);
        const connect::Address servers[] = {server.address()};
        Dispatcher dispatcher =
            join_in_turns(server, [&] { return Dispatcher::connect(servers, {}, patience()); });
        dispatcher.adopt();
        Port port = dispatcher.port();
        return CrossedRequests<Port>{port, server, seed, [&] { (void)dispatcher.turn(); }}.play(
            400);
    });
}

}  // namespace
}  // namespace millrace::message
