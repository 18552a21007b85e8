// Two ends of a packet stream with a network between them, in which everything may happen, and the
// programs that use them: a client that asks, and a server that answers each request some time.
// What the streams do is compared with two queues of messages. Used by the tests of packets.
//
// Nothing takes place by itself: a test chooses the steps. A packet that was posted is read from
// the sender's memory when it leaves, which is later; a place that a receiver has given back is
// filled with other bytes at once. So whoever touches memory too early is found out.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lane/packet_stream.hpp"

namespace millrace::message {

/// splitmix64: small, and the same everywhere.
class PacketRandom {
  public:
    explicit PacketRandom(std::uint64_t seed) : state_{seed * 0x9e3779b97f4a7c15} {}
    std::uint64_t word() {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    std::uint32_t below(std::uint32_t count) {
        return static_cast<std::uint32_t>((word() >> 32) * count >> 32);
    }
    bool percent(std::uint32_t share) { return below(100) < share; }
    bool one_of(std::uint32_t count) { return below(count) == 0; }

  private:
    std::uint64_t state_;
};

/// What goes wrong on the way, in percent of packets.
struct PacketFaults {
    std::uint32_t loss = 0;
    std::uint32_t duplicate = 0;
    std::uint32_t reorder = 0;  ///< of deliveries that take any packet, and not the oldest
};

class PacketEnds {
  public:
    using Time = PacketStream::Time;
    static constexpr unsigned client = 0;
    static constexpr unsigned server = 1;

    struct Setting {
        std::array<std::uint64_t, 2> tokens{0x1111, 0x2222};  ///< of packets to the client, server
        std::array<std::uint32_t, 2> firsts{0, 0};
        std::array<std::uint32_t, 2> rooms{16, 16};
        std::array<std::size_t, 2> memories{1024, 1024};  ///< of packets with data
        std::size_t packet_bytes = 256;
        std::size_t longest = std::size_t{2} << 20;
        PacketFaults faults{};
        /// Of packets to the server, in percent: its memory is short as they come, so that it has
        /// none to keep them in but its spare place.
        std::uint32_t shortage = 0;
        std::uint64_t seed = 1;
    };

    explicit PacketEnds(const Setting& setting) : setting_{setting}, random_{setting.seed} {
        for (unsigned end = 0; end < 2; ++end) {
            End& at = ends_[end];
            at.memory.resize((setting.memories[end] + 2 * packet_head_bytes) / 16);
            at.stream = std::make_unique<PacketStream>(
                PacketTerms{.own_token = setting.tokens[end],
                            .peer_token = setting.tokens[1 - end],
                            .own_first = setting.firsts[end],
                            .peer_first = setting.firsts[1 - end],
                            .packet_bytes = setting.packet_bytes,
                            .own_room = setting.rooms[end],
                            .peer_room = setting.rooms[1 - end],
                            .has_timer = end == client,
                            .max_message_bytes = setting.longest,
                            .spare_bytes = end == server ? setting.packet_bytes : 0},
                std::span{reinterpret_cast<std::byte*>(at.memory.data()), at.memory.size() * 16});
            // Some more than are kept: packets without data need a place, too.
            at.slots.resize(setting.rooms[end] + 4);
            for (std::uint32_t slot = 0; slot < at.slots.size(); ++slot) {
                at.slots[slot].resize(setting.packet_bytes);
                at.free.push_back(slot);
            }
        }
    }

    [[nodiscard]] const std::string& failure() const { return failure_; }
    [[nodiscard]] PacketStream& stream(unsigned end) { return *ends_[end].stream; }
    [[nodiscard]] Time now() const { return now_; }
    [[nodiscard]] std::uint64_t sent(unsigned end) const { return ends_[end].sent; }
    [[nodiscard]] std::uint64_t read(unsigned end) const { return ends_[end].read; }
    [[nodiscard]] std::uint64_t unanswered() const {
        return ends_[server].read - ends_[server].sent;
    }
    [[nodiscard]] std::size_t on_the_way() const {
        return network_.size() + ends_[0].posted.size() + ends_[1].posted.size();
    }
    [[nodiscard]] std::uint64_t steps() const { return steps_; }

    // --- the programs

    /// The end's next message. In place, if it is short and there is room; false: it was to be in
    /// place, and there was none.
    bool send(unsigned end, std::size_t size, bool in_place = false) {
        End& at = ends_[end];
        at.lengths.push_back(size);
        if (in_place) {
            std::span<std::byte> place;
            const base::Status status = at.stream->claim(size, place);
            if (status != base::Status::ok) {
                judge(status == base::Status::full || status == base::Status::too_large,
                      "a claim is refused");
                at.lengths.pop_back();
                return false;
            }
            fill(place, end, at.sent);
            at.stream->commit(size);
        } else {
            std::vector<std::byte> bytes(size);
            fill(bytes, end, at.sent);
            const std::size_t head = std::min<std::size_t>(size, 16);
            judge(at.stream->send(std::span{bytes}.first(head), std::span{bytes}.subspan(head)) ==
                      base::Status::ok,
                  "a send is refused");
        }
        ++at.sent;
        if (end == client) at.stream->expect(true, now_);
        return true;
    }
    /// Looks, and remembers what is there; or passes what was looked at before. False: nothing.
    bool read_step(unsigned end) {
        End& at = ends_[end];
        if (!at.is_looking) {
            std::span<const std::byte> message;
            const base::Status status = at.stream->look(message);
            if (status == base::Status::empty || status == base::Status::closed) return false;
            if (!judge(status == base::Status::ok, "a look fails: ", at.stream->failure())) {
                return false;
            }
            at.is_looking = true;
            at.looked_at = message;
            return true;
        }
        at.is_looking = false;
        check(end);
        at.stream->pass();
        take_back(end);
        ++at.read;
        if (end == client) at.stream->expect(at.read != at.sent, now_);
        return true;
    }
    /// All messages that are here.
    void read_all(unsigned end) {
        while (failure_.empty() && read_step(end)) {
        }
        take_back(end);
    }
    /// Of which the server has not answered one: it does. False: there is none.
    bool answer(std::size_t size, bool in_place = false) {
        return unanswered() != 0 && send(server, size, in_place);
    }

    // --- the devices and the network

    /// Posts at most `most` packets of those that are due.
    bool post(unsigned end, unsigned most = 1000, bool with_bare = true) {
        End& at = ends_[end];
        bool some = false;
        std::span<const std::byte> packet;
        for (; most > 0 && at.stream->next(packet, now_, with_bare); --most) {
            ++steps_;
            some = true;
            at.posted.push_back({packet, {packet.begin(), packet.end()}, ++at.tickets});
            at.stream->posted(at.tickets, now_);
        }
        return some;
    }
    /// The oldest one that was posted leaves.
    bool leave(unsigned end) {
        End& at = ends_[end];
        if (at.posted.empty()) return false;
        Posted posted = std::move(at.posted.front());
        at.posted.pop_front();
        at.left = posted.ticket;
        judge(std::ranges::equal(posted.packet, posted.bytes), "a packet is changed under way");
        transmit(1 - end, std::move(posted.bytes));
        return true;
    }
    /// The completions of what has left are polled.
    void complete(unsigned end) { ends_[end].stream->completed(ends_[end].left); }
    /// A packet arrives: the oldest, or any. False: there is none.
    bool arrive() {
        if (network_.empty()) return false;
        ++steps_;
        const bool any = random_.percent(setting_.faults.reorder);
        const std::size_t index =
            any ? random_.below(static_cast<std::uint32_t>(network_.size())) : 0;
        const Flying flying = std::move(network_[index]);
        network_.erase(network_.begin() + static_cast<std::ptrdiff_t>(index));
        deliver(flying.to, flying.bytes);
        return true;
    }
    /// On its way from now on, whatever it is.
    void transmit(unsigned to, std::vector<std::byte> bytes) {
        if (random_.percent(setting_.faults.loss)) return;
        if (random_.percent(setting_.faults.duplicate)) network_.push_back({to, bytes});
        network_.push_back({to, std::move(bytes)});
    }
    /// What is still on its way, with its receivers.
    [[nodiscard]] std::vector<std::pair<unsigned, std::vector<std::byte>>> take_late() {
        std::vector<std::pair<unsigned, std::vector<std::byte>>> late;
        for (Flying& flying : network_) late.emplace_back(flying.to, std::move(flying.bytes));
        network_.clear();
        return late;
    }
    /// The server's memory is short from now on, for ever.
    void fall_short() { setting_.shortage = 100; }
    void pass_time(std::chrono::nanoseconds time) {
        now_ += time;
        ends_[client].stream->wake(now_);
    }
    /// Until the client's timer runs out. False: it has none.
    bool pass_time_until_due() {
        const Time due = ends_[client].stream->due();
        if (due == Time::max()) return false;
        now_ = std::max(now_, due);
        ends_[client].stream->wake(now_);
        ++steps_;
        return true;
    }
    /// Everything that is posted and on its way, until nothing is; no time passes.
    void settle() {
        bool some = true;
        while (some && failure_.empty() && steps_ < most_steps) {
            some = false;
            for (unsigned end = 0; end < 2; ++end) {
                some |= post(end);
                while (leave(end)) some = true;
                complete(end);
            }
            while (arrive()) some = true;
        }
        judge(steps_ < most_steps, "packets without end");
    }

    bool judge(bool holds, const std::string& rule, std::string_view more = {}) {
        if (!holds && failure_.empty()) failure_ = rule + std::string{more};
        return holds;
    }

    static constexpr std::uint64_t most_steps = 3'000'000;

  private:
    struct Posted {
        std::span<const std::byte> packet;
        std::vector<std::byte> bytes;  ///< what it was then
        std::uint64_t ticket;
    };
    struct Flying {
        unsigned to;
        std::vector<std::byte> bytes;
    };
    struct alignas(16) Line16 {
        std::byte bytes[16];
    };
    struct End {
        std::vector<Line16> memory;
        std::unique_ptr<PacketStream> stream;
        std::vector<std::vector<std::byte>> slots;
        std::vector<std::uint32_t> free;
        std::deque<Posted> posted;
        std::uint64_t tickets = 0;
        std::uint64_t left = 0;
        std::vector<std::size_t> lengths;  ///< of what it has sent
        std::uint64_t sent = 0;
        std::uint64_t read = 0;
        bool is_looking = false;
        std::span<const std::byte> looked_at;
    };

    /// Byte i of an end's message of that number.
    static std::byte content(unsigned end, std::uint64_t number, std::size_t i) {
        return static_cast<std::byte>((number * 2 + end) * 0x9d + i * 7 + (i >> 8) * 31);
    }
    static void fill(std::span<std::byte> bytes, unsigned end, std::uint64_t number) {
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = content(end, number, i);
    }
    void check(unsigned end) {
        const End& at = ends_[end];
        const End& from = ends_[1 - end];
        if (!judge(at.read < from.sent, "a message comes that was not sent")) return;
        if (!judge(at.looked_at.size() == from.lengths[at.read],
                   "a message has another length than it had")) {
            return;
        }
        for (std::size_t i = 0; i < at.looked_at.size(); ++i) {
            if (!judge(at.looked_at[i] == content(1 - end, at.read, i),
                       "a message comes torn, twice, or out of order")) {
                return;
            }
        }
    }
    void deliver(unsigned to, const std::vector<std::byte>& bytes) {
        End& at = ends_[to];
        take_back(to);
        if (at.free.empty() || bytes.size() > setting_.packet_bytes) return;
        const std::uint32_t slot = at.free.back();
        std::memcpy(at.slots[slot].data(), bytes.data(), bytes.size());
        const bool may_keep = to == client || !random_.percent(setting_.shortage);
        const auto arrival =
            at.stream->receive(std::span{at.slots[slot]}.first(bytes.size()), slot, now_, may_keep);
        judge(may_keep || arrival != PacketStream::Arrival::kept, "memory is kept that is short");
        judge(at.stream->failure().empty(), "an honest peer is accused: ", at.stream->failure());
        if (arrival == PacketStream::Arrival::kept) {
            at.free.pop_back();
        } else {
            std::ranges::fill(at.slots[slot], std::byte{0xee});
        }
        take_back(to);
    }
    void take_back(unsigned end) {
        End& at = ends_[end];
        std::uint32_t slot;
        while (at.stream->take_free(slot)) {
            if (!judge(slot < at.slots.size() && std::ranges::find(at.free, slot) == at.free.end(),
                       "a place is given back that was not kept")) {
                return;
            }
            std::ranges::fill(at.slots[slot], std::byte{0xee});
            at.free.push_back(slot);
        }
    }

    Setting setting_;
    PacketRandom random_;
    std::array<End, 2> ends_;
    std::vector<Flying> network_;
    Time now_{std::chrono::seconds{1}};
    std::uint64_t steps_ = 0;
    std::string failure_;
};

}  // namespace millrace::message
