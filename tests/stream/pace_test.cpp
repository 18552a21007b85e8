// How fast the modes are, in a time of its own: two ends, a link of 54 Gb/s, a receiving program
// that reads what came before it offers the next receive, and both programs interrupted now and
// then. The clock is a number, so the outcome is the same on every machine.
//
// What is looked for: mode dynamic keeps pace with the better of the others. Its sender turns to
// the ring whenever an advertisement is late, and what decides is how soon it is back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <variant>

#include "connection.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::stream {
namespace {

using base::Status;
using Microseconds = double;

struct Course {
    std::uint64_t bytes;  ///< of a send and of a receive
    std::uint32_t sends;
    std::uint32_t receives;
    Microseconds read;  ///< that the program takes to read 64 KiB
    Microseconds copy;  ///< ... the socket to copy them out of the ring
    bool is_interrupted;
};

class Pace {
  public:
    Pace(const Course& course, Mode mode, std::uint64_t put_off_bytes = 0)
        : course_{course}, source_{terms(mode, put_off_bytes)}, sink_{terms(mode)} {
        for (std::uint32_t i = 0; i < course.receives; ++i) offer();
    }
    /// Bytes that the receiving program read in the last four fifths of the time.
    std::uint64_t run() {
        const Microseconds whole = 30'000 + 2'500 * static_cast<double>(course_.bytes >> 16);
        std::uint64_t before = 0;
        while (std::min(source_time_, sink_time_) < whole) {
            if (source_time_ <= sink_time_) {
                source_is_idle_ = step_source();
                if (source_is_idle_) pass(source_time_, std::min(next_of_source(), sink_time_));
            } else {
                sink_is_idle_ = step_sink();
                if (sink_is_idle_) pass(sink_time_, std::min(next_of_sink(), source_time_));
            }
            if (source_is_idle_ && sink_is_idle_) pass_both();
            if (sink_time_ < whole / 5) before = read_;
        }
        return read_ - before;
    }

  private:
    struct Arrival {
        Microseconds at;
        EncodedMessage message;
    };
    struct Written {
        Microseconds at;
        std::uint64_t places;
    };
    static constexpr std::uint64_t ring_bytes = 256 << 10;
    static constexpr Microseconds latency = 1;
    static constexpr double bytes_per_microsecond = 6750;
    static constexpr Microseconds of_an_action = 0.4;
    static constexpr Microseconds of_a_look = 0.05;
    static constexpr Microseconds never = std::numeric_limits<Microseconds>::max();

    static Terms terms(Mode mode, std::uint64_t put_off_bytes = 0) {
        Terms terms;
        terms.put_off_bytes = put_off_bytes;
        terms.outgoing.mode = terms.incoming.mode = mode;
        terms.outgoing.ring_bytes = terms.incoming.ring_bytes = ring_bytes;
        terms.own_slots = terms.peer_slots = 128;
        terms.awaited_bytes = Tuning{}.least_awaited;
        terms.offered_bytes = Tuning{}.least_offered;
        return terms;
    }
    [[nodiscard]] double share(std::uint64_t bytes) const {
        return static_cast<double>(bytes) / 65536;
    }
    /// 300 us now and then.
    bool interrupt(Microseconds& time, Microseconds& next) {
        if (!course_.is_interrupted || time < next) return false;
        time += 300;
        next = time + between_(random_);
        return true;
    }
    // An end that looks and finds nothing to do goes on to the look in which it will: when
    // something comes to it, or, as the other one may send something, to that one's time.
    [[nodiscard]] Microseconds next_of_source() const {
        Microseconds next = course_.is_interrupted ? source_interrupted_ : never;
        if (!to_source_.empty()) next = std::min(next, to_source_.front().at);
        if (!writes_.empty()) next = std::min(next, writes_.front().at);
        return is_awaiting_ ? std::min(next, awaits_until_) : next;
    }
    [[nodiscard]] Microseconds next_of_sink() const {
        const Microseconds next = course_.is_interrupted ? sink_interrupted_ : never;
        return to_sink_.empty() ? next : std::min(next, to_sink_.front().at);
    }
    static void pass(Microseconds& time, Microseconds until) {
        if (until > time) time += std::ceil((until - time) / of_a_look) * of_a_look;
    }
    void pass_both() {
        const Microseconds next = std::min(next_of_source(), next_of_sink());
        ASSERT_LT(next, never) << "both ends stand still";
        pass(source_time_, next);
        pass(sink_time_, next);
        source_is_idle_ = sink_is_idle_ = false;
    }
    void offer() {
        ASSERT_EQ(
            sink_.receive({.id = offered_++, .address = 4096, .length = course_.bytes, .key = 1}),
            Status::ok);
    }
    Microseconds over_the_link(std::uint64_t bytes) {
        link_free_ =
            std::max(link_free_, source_time_) + static_cast<double>(bytes) / bytes_per_microsecond;
        return link_free_ + latency;
    }

    /// False: it found something to do.
    bool step_source() {
        bool is_idle = !interrupt(source_time_, source_interrupted_);
        for (; !to_source_.empty() && to_source_.front().at <= source_time_;
             to_source_.pop_front()) {
            EXPECT_EQ(source_.deliver(to_source_.front().message.span()), Violation::none);
            is_idle = false;
        }
        for (; !writes_.empty() && writes_.front().at <= source_time_; writes_.pop_front()) {
            source_.written(writes_.front().places);
            is_idle = false;
        }
        do {
            if (sent_ - sends_done_ < course_.sends) {
                EXPECT_EQ(source_.send(sent_++, course_.bytes), Status::ok);
                is_idle = false;
            }
            if (act_source()) is_idle = false;
        } while (sent_ - sends_done_ < course_.sends);
        source_time_ += of_a_look;
        return is_idle;
    }
    /// False: there was nothing to do.
    bool act_source() {
        for (bool has_acted = false;; has_acted = true) {
            const Action action = source_.next();
            if (const auto* const write = std::get_if<Write>(&action)) {
                const Microseconds there = over_the_link(write->transfer.length + 64);
                to_sink_.push_back({there, write->notification});
                writes_.push_back({there + latency, write->transfer.places});
            } else if (const auto* const message = std::get_if<SendMessage>(&action)) {
                to_sink_.push_back({over_the_link(64), message->message});
            } else if (std::holds_alternative<SendDone>(action)) {
                ++sends_done_;
                continue;
            } else if (!stops_awaiting()) {
                return has_acted;
            }
            source_time_ += of_an_action;
        }
    }
    /// As hold.hpp has it.
    bool stops_awaiting() {
        const Sender& sender = source_.sender();
        if (!sender.is_awaiting()) {
            is_awaiting_ = false;
            return false;
        }
        if (!is_awaiting_ || place_ != sender.sequence()) {
            is_awaiting_ = true;
            place_ = sender.sequence();
            awaits_until_ = source_time_ + static_cast<double>(sender.bytes_to_copy()) / 4000 +
                            static_cast<double>(course_.bytes) / bytes_per_microsecond +
                            2 * latency;
        }
        if (source_time_ < awaits_until_) return false;
        source_.stop_awaiting();
        return true;
    }

    /// False: it found something to do.
    bool step_sink() {
        bool is_idle = !interrupt(sink_time_, sink_interrupted_);
        for (; !to_sink_.empty() && to_sink_.front().at <= sink_time_; to_sink_.pop_front()) {
            EXPECT_EQ(sink_.deliver(to_sink_.front().message.span()), Violation::none);
            is_idle = false;
        }
        if (act_sink()) is_idle = false;
        if (!completed_.empty()) {
            is_idle = false;
            sink_time_ += course_.read * share(completed_.front());
            read_ += completed_.front();
            completed_.pop_front();
            offer();
            (void)act_sink();
        }
        sink_time_ += of_a_look;
        return is_idle;
    }
    /// False: there was nothing to do.
    bool act_sink() {
        for (bool has_acted = false;; has_acted = true) {
            const Action action = sink_.next();
            if (const auto* const copy = std::get_if<CopyOut>(&action)) {
                sink_time_ += course_.copy * share(copy->length);
            } else if (const auto* const message = std::get_if<SendMessage>(&action)) {
                to_source_.push_back({sink_time_ + latency, message->message});
                sink_time_ += of_an_action;
            } else if (const auto* const done = std::get_if<ReceiveDone>(&action)) {
                completed_.push_back(done->length);
            } else {
                return has_acted;
            }
        }
    }

    Course course_;
    Connection source_;
    Connection sink_;
    std::mt19937_64 random_{1};
    std::exponential_distribution<Microseconds> between_{1.0 / 2000};
    Microseconds source_time_ = 0;
    Microseconds sink_time_ = 0;
    Microseconds source_interrupted_ = 1'500;
    Microseconds sink_interrupted_ = 2'500;
    Microseconds link_free_ = 0;
    std::deque<Arrival> to_source_;
    std::deque<Arrival> to_sink_;
    std::deque<Written> writes_;
    std::deque<std::uint64_t> completed_;
    std::uint64_t sent_ = 0;
    std::uint64_t sends_done_ = 0;
    std::uint64_t offered_ = 0;
    std::uint64_t read_ = 0;
    bool is_awaiting_ = false;
    std::uint64_t place_ = 0;
    Microseconds awaits_until_ = 0;
    bool source_is_idle_ = false;
    bool sink_is_idle_ = false;
};

TEST(StreamPace, ModeDynamicKeepsUpWithTheBetterOfTheOthers) {
    for (const std::uint64_t kibibytes : {64, 128, 256, 1024}) {
        for (const auto& [sends, receives] : {std::pair{4U, 8U}, {1U, 32U}, {4U, 4U}, {32U, 32U}}) {
            for (const auto& [read, copy] : {std::pair{10.0, 10.0}, {4.0, 6.0}}) {
                for (const bool is_interrupted : {false, true}) {
                    const Course course{kibibytes << 10, sends, receives, read, copy,
                                        is_interrupted};
                    const std::uint64_t direct = Pace{course, Mode::direct}.run();
                    const std::uint64_t indirect = Pace{course, Mode::indirect}.run();
                    // What fits into the ring goes there, or is put off behind a quarter of it.
                    const std::uint64_t dynamic = Pace{course, Mode::dynamic}.run();
                    const std::uint64_t put_off = Pace{course, Mode::dynamic, 64 << 10}.run();
                    EXPECT_GE(static_cast<double>(std::min(dynamic, put_off)),
                              0.94 * static_cast<double>(std::max(direct, indirect)))
                        << dynamic << " and " << put_off << " of " << direct << ", " << indirect
                        << ": " << kibibytes << " KiB, " << sends << " sends, " << receives
                        << " receives, to read " << read << " us, to copy " << copy << " us"
                        << (is_interrupted ? ", interrupted" : "");
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

}  // namespace
}  // namespace millrace::stream
