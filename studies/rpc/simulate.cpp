#include "simulate.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/framework/payload.hpp"

namespace millrace::bench {
namespace {

using Time = double;  // nanoseconds

class Simulation {
  public:
    explicit Simulation(const SimulatedCase& chosen)
        : chosen_{chosen},
          costs_{chosen.costs},
          cores_(chosen.requester_cores == 0 ? chosen.requesters : chosen.requester_cores),
          responders_(chosen.responders),
          links_(std::max<std::size_t>(chosen.links, 1)) {
        for (Responder& each : responders_) each.mailboxes.assign(chosen.requesters, never);
        for (std::size_t i = 0; i < chosen.requesters; ++i) events_.push({0, kind_answer, i});
        for (std::size_t i = 0; i < chosen.responders; ++i) events_.push({0, kind_look, i});
    }

    Simulated run() {
        const std::size_t warm = chosen_.responses / 10;
        Time begin = 0;
        while (answered_ < warm + chosen_.responses) {
            const Event next = events_.top();
            events_.pop();
            now_ = next.when;
            if (next.kind == kind_answer) {
                ask(next.who);
            } else {
                look(next.who);
            }
            if (begin == 0 && answered_ >= warm) {
                begin = now_;
                looked_at_ = found_ = served_for_ = 0;
            }
        }
        const Time time = now_ - begin;
        const auto responders = static_cast<double>(chosen_.responders);
        return {.per_second = static_cast<double>(chosen_.responses) * 1e9 / time,
                .empty_percent = 100 * (1 - found_ / std::max(looked_at_, 1.0)),
                .responder_busy = served_for_ / (time * responders)};
    }

  private:
    static constexpr Time never = 1e300;
    static constexpr int kind_look = 0;
    static constexpr int kind_answer = 1;
    struct Event {
        Time when = 0;
        int kind = 0;
        std::size_t who = 0;
        [[nodiscard]] bool operator>(const Event& other) const {
            return std::tie(when, kind, who) > std::tie(other.when, other.kind, other.who);
        }
    };
    struct Responder {
        std::vector<Time> mailboxes{};  ///< when the request in it is seen; never: there is none
        std::size_t next = 0;
        std::deque<std::pair<Time, std::size_t>> queue{};  ///< by SEND: when, and whose
    };

    void ask(std::size_t requester) {
        Time& core = cores_[requester % cores_.size()];
        core = std::max(core, now_) + costs_.ask;
        const std::size_t to = random_() % responders_.size();
        Responder& responder = responders_[to];
        const Time seen = core + costs_.way;
        if (chosen_.by_send) {
            const auto place = std::upper_bound(responder.queue.begin(), responder.queue.end(),
                                                std::pair{seen, requester});
            responder.queue.insert(place, {seen, requester});
        } else {
            responder.mailboxes[requester] = seen;
        }
    }

    void look(std::size_t number) {
        Responder& responder = responders_[number];
        std::size_t whose = responder.next;
        bool has_one = false;
        if (chosen_.by_send) {
            has_one = !responder.queue.empty() && responder.queue.front().first <= now_;
            if (has_one) {
                whose = responder.queue.front().second;
                responder.queue.pop_front();
            }
        } else {
            has_one = responder.mailboxes[whose] <= now_;
            responder.mailboxes[whose] = has_one ? never : responder.mailboxes[whose];
            responder.next = whose + 1 == chosen_.requesters ? 0 : whose + 1;
        }
        ++looked_at_;
        Time free = now_ + costs_.look;
        if (has_one) {
            ++found_;
            ++answered_;
            free = now_ + costs_.serve;
            served_for_ += costs_.serve;
            events_.push({answer_from(number, free), kind_answer, whose});
        }
        events_.push({free, kind_look, number});
    }

    /// When the requester sees the answer that the responder has made by `made`.
    Time answer_from(std::size_t responder, Time made) {
        if (chosen_.link_bits_per_second == 0) return made + costs_.way;
        Time& link = links_[responder % links_.size()];
        const double bits = 8 * static_cast<double>(chosen_.response_bytes);
        link = std::max(link, made) + bits * 1e9 / chosen_.link_bits_per_second;
        return link + costs_.way;
    }

    SimulatedCase chosen_;
    SimulatedCosts costs_;
    std::vector<Time> cores_;  ///< free from then on
    std::vector<Responder> responders_;
    std::vector<Time> links_;  ///< likewise
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::minstd_rand random_{1};
    Time now_ = 0;
    std::size_t answered_ = 0;
    double looked_at_ = 0;
    double found_ = 0;
    double served_for_ = 0;
};

}  // namespace

Simulated simulate(const SimulatedCase& chosen) {
    require(chosen.requesters != 0 && chosen.responders != 0 && chosen.responses >= 10 &&
                chosen.costs.ask > 0 && chosen.costs.serve > 0 && chosen.costs.look > 0 &&
                chosen.costs.way >= 0,
            "a simulation whose steps take time");
    return Simulation{chosen}.run();
}

}  // namespace millrace::bench
