// Two ends of a reliable connection without a network: their memory, their receives, what they were
// told, and the packets that they said. Tests decide what arrives, when, and how often.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "roce/packet.hpp"
#include "roce/requester.hpp"
#include "roce/responder.hpp"

namespace millrace::roce {

using Bytes = std::vector<std::uint8_t>;

/// Keeps what is committed, as it would travel.
class Wire final : public Outlet {
  public:
    std::uint8_t* begin(std::size_t bytes) noexcept override {
        if (room == 0) return nullptr;
        begun_.assign(bytes, 0xee);
        return begun_.data();
    }
    void commit() noexcept override {
        if (room > 0) --room;
        said.push_back(begun_);
    }

    std::deque<Bytes> said;
    int room = -1;  ///< packets; negative: without end

  private:
    Bytes begun_;
};

inline constexpr std::uint32_t region_key = 0x4711;
inline constexpr std::uint64_t region_address = 0x10000;

/// What the program of one end has posted, and been told.
class Sends final : public SendSide {
  public:
    struct Sent {
        Bytes bytes;  ///< of a READ or an atomic: what came
        Status gathers = Status::success;
        Status scatters = Status::success;
        Status local = Status::success;
        std::uint32_t placed = 0;
    };

    Status gather(std::uint32_t slot, std::uint32_t offset,
                  std::span<std::uint8_t> to) noexcept override {
        const Sent& sent = all.at(slot);
        EXPECT_LE(offset + to.size(), sent.bytes.size());
        std::memcpy(to.data(), sent.bytes.data() + offset, to.size());
        return sent.gathers;
    }
    Status scatter(std::uint32_t slot, std::uint32_t offset,
                   std::span<const std::uint8_t> from) noexcept override {
        Sent& sent = all.at(slot);
        EXPECT_EQ(offset, sent.placed) << "in order, each once";
        EXPECT_LE(offset + from.size(), sent.bytes.size());
        std::memcpy(sent.bytes.data() + offset, from.data(), from.size());
        sent.placed = offset + static_cast<std::uint32_t>(from.size());
        return sent.scatters;
    }
    Status run_local(std::uint32_t slot) noexcept override {
        EXPECT_EQ(slot, completed) << "in its turn";
        return all.at(slot).local;
    }
    void complete(std::uint32_t slot) noexcept override {
        EXPECT_FALSE(failed) << "nothing completes after a failure";
        EXPECT_EQ(slot, completed) << "in order, each once";
        ++completed;
    }
    void fail(std::uint32_t slot, Status why) noexcept override {
        EXPECT_FALSE(failed);
        EXPECT_EQ(slot, completed);
        failed = why;
    }

    std::vector<Sent> all;
    std::uint32_t completed = 0;
    std::optional<Status> failed;
};

/// The memory of one end that its peer reaches, and its receives.
class Receives final : public ReceiveSide {
  public:
    struct Received {
        Bytes bytes;
        Arrival arrival;
    };

    explicit Receives(std::size_t bytes) : memory(bytes) {}

    Outcome claim() noexcept override {
        if (claimed_) return Outcome::done;
        if (posted.empty()) return Outcome::no_receive;
        claimed_ = posted.front();
        posted.pop_front();
        into_.clear();
        return Outcome::done;
    }
    Outcome begin_write(std::uint32_t key, std::uint64_t address,
                        std::uint32_t length) noexcept override {
        if (!is_within(key, address, length)) return Outcome::remote_access;
        writes_to_ = address - region_address;
        is_writing_ = true;
        return Outcome::done;
    }
    Outcome place(std::uint32_t offset, std::span<const std::uint8_t> bytes) noexcept override {
        EXPECT_EQ(offset, placed_) << "in order, each once";
        placed_ = offset + static_cast<std::uint32_t>(bytes.size());
        if (is_writing_) {
            std::memcpy(memory.data() + writes_to_ + offset, bytes.data(), bytes.size());
            return Outcome::done;
        }
        EXPECT_TRUE(claimed_);
        if (placed_ > *claimed_) {
            claimed_.reset();
            ++too_long;
            return Outcome::invalid_request;
        }
        into_.insert(into_.end(), bytes.begin(), bytes.end());
        return Outcome::done;
    }
    Outcome finish(const Arrival& arrival) noexcept override {
        EXPECT_EQ(arrival.length, placed_);
        EXPECT_EQ(arrival.is_write, is_writing_ || (arrival.is_write && arrival.length == 0));
        const bool takes_receive = !arrival.is_write || arrival.has_immediate;
        EXPECT_TRUE(claimed_ || !takes_receive);
        if (takes_receive) {
            received.push_back({into_, arrival});
            claimed_.reset();
        }
        ++finished;
        forget();
        return Outcome::done;
    }
    void abandon() noexcept override {
        ++abandoned;
        forget();
    }
    Outcome check_read(std::uint32_t key, std::uint64_t address,
                       std::uint32_t length) noexcept override {
        return is_within(key, address, length) ? Outcome::done : Outcome::remote_access;
    }
    Outcome read(std::uint32_t key, std::uint64_t address,
                 std::span<std::uint8_t> to) noexcept override {
        if (!is_within(key, address, to.size())) return Outcome::remote_access;
        std::memcpy(to.data(), memory.data() + (address - region_address), to.size());
        return Outcome::done;
    }
    Outcome atomic(Operation operation, std::uint32_t key, std::uint64_t address,
                   std::uint64_t compare_or_add, std::uint64_t swap,
                   std::uint64_t& original) noexcept override {
        if (!is_within(key, address, sizeof original)) return Outcome::remote_access;
        std::uint8_t* at = memory.data() + (address - region_address);
        std::memcpy(&original, at, sizeof original);
        std::uint64_t next = original + compare_or_add;
        if (operation == Operation::compare_swap) {
            next = original == compare_or_add ? swap : original;
        }
        std::memcpy(at, &next, sizeof next);
        ++atomics;
        return Outcome::done;
    }
    void failed(Status why) noexcept override {
        EXPECT_FALSE(has_failed);
        has_failed = why;
    }

    Bytes memory;
    std::uint32_t key = region_key;
    std::deque<std::uint32_t> posted;  ///< bytes of each receive
    std::vector<Received> received;
    std::uint32_t finished = 0;
    std::uint32_t atomics = 0;
    std::uint32_t abandoned = 0;
    std::uint32_t too_long = 0;
    std::optional<Status> has_failed;

  private:
    [[nodiscard]] bool is_within(std::uint32_t its_key, std::uint64_t address,
                                 std::size_t length) const noexcept {
        return its_key == key && address >= region_address &&
               address - region_address + length <= memory.size();
    }
    void forget() noexcept {
        into_.clear();
        is_writing_ = false;
        placed_ = 0;
    }

    std::optional<std::uint32_t> claimed_;
    Bytes into_;
    bool is_writing_ = false;
    std::uint64_t writes_to_ = 0;
    std::uint32_t placed_ = 0;
};

/// What both ends of a connection are given.
struct Settings {
    std::uint32_t mtu = 256;
    std::uint32_t first_psn = 0xfffffe;  ///< soon wraps
    std::uint32_t window = 128;
    std::uint32_t most_reads = 4;
    std::uint8_t timeout = 14;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry = 7;
    std::uint8_t min_rnr_timer = 1;
    std::size_t memory = 16384;
};

inline constexpr std::uint32_t most_requests = 64;
inline constexpr std::uint32_t most_reads = 16;

struct End {
    explicit End(const Settings& settings, std::uint32_t peer)
        : receives{settings.memory},
          requester{sends, most_requests, most_reads},
          responder{receives, most_reads} {
        RequesterAttributes asks;
        asks.destination = peer;
        asks.first_psn = settings.first_psn;
        asks.mtu = settings.mtu;
        asks.timeout = settings.timeout;
        asks.retry_count = settings.retry_count;
        asks.rnr_retry = settings.rnr_retry;
        asks.most_reads = settings.most_reads;
        asks.window = settings.window;
        requester.start(asks);
        ResponderAttributes answers;
        answers.destination = peer;
        answers.first_psn = settings.first_psn;
        answers.mtu = settings.mtu;
        answers.min_rnr_timer = settings.min_rnr_timer;
        answers.most_reads = settings.most_reads;
        responder.start(answers);
    }

    /// `bytes`: what leaves; of a READ, so many zeroes. Where the slots are as posted.
    Request& prepare(Operation operation, Bytes bytes, std::uint64_t offset = 0) {
        request = {};
        request.operation = operation;
        request.slot = static_cast<std::uint32_t>(sends.all.size());
        request.length = static_cast<std::uint32_t>(bytes.size());
        request.remote_key = region_key;
        request.remote_address = region_address + offset;
        Sends::Sent sent;
        sent.bytes = std::move(bytes);
        sends.all.push_back(std::move(sent));
        return request;
    }
    void post(Operation operation, Bytes bytes, std::uint64_t offset = 0) {
        requester.post(prepare(operation, std::move(bytes), offset));
    }
    void post_atomic(Operation operation, std::uint64_t offset, std::uint64_t compare_or_add,
                     std::uint64_t swap = 0) {
        Request& atomic = prepare(operation, Bytes(8), offset);
        atomic.compare_or_add = compare_or_add;
        atomic.swap = swap;
        requester.post(atomic);
    }

    /// False: there is more to say.
    bool send(std::int64_t now, bool at_once = true) {
        const bool answered = responder.send(now, wire, at_once);
        const bool asked = requester.send(now, wire);
        return answered && asked;
    }
    void arrive(const Bytes& bytes, std::int64_t now) {
        Packet packet;
        ASSERT_EQ(parse(bytes, packet), Defect::none);
        if (is_answer(packet.kind)) {
            requester.arrived(packet, now);
        } else {
            responder.arrived(packet, now);
        }
    }
    [[nodiscard]] std::int64_t next_deadline() const {
        return std::min(requester.next_deadline(), responder.next_deadline());
    }

    Wire wire;
    Sends sends;
    Receives receives;
    Requester requester;
    Responder responder;
    Request request{};
};

/// So many bytes that tell of their place.
inline Bytes pattern(std::size_t bytes, std::uint32_t seed = 1) {
    Bytes made(bytes);
    for (std::uint8_t& byte : made) {
        seed = seed * 1664525 + 1013904223;
        byte = static_cast<std::uint8_t>(seed >> 24);
    }
    return made;
}

inline Packet read_packet(const Bytes& bytes) {
    Packet packet;
    EXPECT_EQ(parse(bytes, packet), Defect::none);
    return packet;
}

/// `active` asks, `passive` answers. Nothing is delivered by itself.
struct Ends {
    explicit Ends(const Settings& its_settings = {})
        : settings{its_settings}, active{settings, 2}, passive{settings, 1} {}

    End& other(const End& end) { return &end == &active ? passive : active; }
    /// What `from` says leaves; how many packets it is.
    std::size_t say(End& from) {
        from.send(now);
        return from.wire.said.size();
    }
    Bytes take(End& from) {
        if (from.wire.said.empty()) {
            ADD_FAILURE() << "it said nothing";
            return Bytes(bth_bytes);
        }
        Bytes bytes = from.wire.said.front();
        from.wire.said.pop_front();
        return bytes;
    }
    void deliver(End& from) { other(from).arrive(take(from), now); }
    void lose(End& from) { (void)take(from); }
    /// Everything arrives, until nobody says anything.
    void settle() {
        for (int rounds = 0; say(active) + say(passive) != 0; ++rounds) {
            if (rounds == 10'000) {
                ADD_FAILURE() << "they talk for ever";
                return;
            }
            while (!active.wire.said.empty()) deliver(active);
            while (!passive.wire.said.empty()) deliver(passive);
        }
    }
    /// The clock goes to the next deadline, if there is one.
    bool pass_time() {
        const std::int64_t due = std::min(active.next_deadline(), passive.next_deadline());
        if (due == never) return false;
        now = std::max(now, due);
        return true;
    }

    Settings settings;
    End active;
    End passive;
    std::int64_t now = 1'000'000;
};

}  // namespace millrace::roce
