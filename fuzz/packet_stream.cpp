// A lying peer of a packet stream: an input chooses terms, and is a list of steps: what the program
// does, packets that an honest peer would send, those with bytes of them changed, and invented
// ones.
//
// Required: every call returns; what is read lies in places that were kept, and is no longer than
// allowed; a place is given back once; a packet that is sent lies in the stream's memory, and no
// more are under way than the peer has said that it has room for; nothing is sent behind a
// violation.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "lane/packet_stream.hpp"

namespace millrace::fuzz {
namespace {

using namespace message;
using base::Status;

constexpr std::uint32_t most_steps = 300;
constexpr std::size_t packet_bytes = 96;
constexpr std::size_t longest = 500;
constexpr std::size_t memory_bytes = 512;

PacketTerms terms_of(Input& input) {
    PacketTerms terms{.own_token = 1, .peer_token = 2};
    const std::uint32_t first = input.take<std::uint8_t>() - 40U;
    terms.own_first = terms.peer_first = first;
    terms.packet_bytes = packet_bytes;
    terms.own_room = 1 + input.below(most_packets);
    terms.peer_room = 1 + input.below(most_packets);
    terms.has_timer = input.below(2) == 0;
    terms.max_message_bytes = longest;
    return terms;
}

class Session {
  public:
    explicit Session(Input& input)
        : input_{input},
          slots_(most_packets + 1),
          terms_{terms_of(input)},
          end_{terms_, memory_},
          peer_{peer_terms(), peer_memory_} {}

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
    }

  private:
    [[nodiscard]] PacketTerms peer_terms() const {
        PacketTerms terms = terms_;
        std::swap(terms.own_token, terms.peer_token);
        std::swap(terms.own_room, terms.peer_room);
        terms.has_timer = !terms.has_timer;
        return terms;
    }
    void step() {
        now_ += std::chrono::microseconds{input_.take<std::uint8_t>()};
        switch (input_.below(12)) {
            case 0: (void)end_.send(input_.below(2) == 0 ? bytes(0) : bytes(16), bytes(300)); break;
            case 1: {
                std::span<std::byte> place;
                const std::size_t size = input_.below(packet_bytes);
                if (end_.claim(size, place) == Status::ok) {
                    require(within(place), "a claim lies in the memory");
                    std::ranges::fill(place, std::byte{3});
                    end_.commit(size);
                }
                break;
            }
            case 2: read(); break;
            case 3: post(); break;
            case 4: end_.completed(tickets_ - input_.below(4) % (tickets_ + 1)); break;
            case 5: end_.expect(input_.below(2) == 0, now_); break;
            case 6:
                now_ = std::max(now_, std::min(end_.due(), now_ + std::chrono::seconds{1}));
                end_.wake(now_);
                break;
            case 7: (void)peer_.send(bytes(10), bytes(300)); break;
            case 8:
                if (input_.below(16) == 0) {
                    (void)end_.end_at(terms_.own_first + input_.below(200) - 50, now_);
                }
                break;
            case 9: invented(); break;
            default: honest(); break;
        }
        std::uint32_t slot;
        while (end_.take_free(slot)) give_back(slot);
    }

    std::span<const std::byte> bytes(std::size_t most) {
        return std::as_bytes(input_.bytes(input_.below(static_cast<std::uint32_t>(most) + 1)));
    }
    [[nodiscard]] bool within(std::span<const std::byte> place) const {
        return place.data() >= memory_.data() &&
               place.data() + place.size() <= memory_.data() + memory_.size();
    }
    void read() {
        std::span<const std::byte> message;
        const Status status = end_.look(message);
        if (status != Status::ok && status != Status::too_large) return;
        require(message.size() <= longest, "no message is longer than allowed");
        for (const std::byte byte : message) sum_ += static_cast<std::uint64_t>(byte);
        end_.pass();
    }
    void post() {
        std::span<const std::byte> packet;
        for (int i = 0; end_.next(packet, now_, input_.below(2) == 0); ++i) {
            require(i < 1000, "there is an end of what is to be sent");
            require(within(packet), "a packet lies in the memory");
            require(end_.failure().empty(), "nothing is sent behind a violation");
            PacketHead head;
            std::span<const std::byte> payload;
            require(parse(packet, head, payload), "what is sent is a packet");
            if ((head.flags & packet_data) != 0) {
                require(distance(head.sequence, limit_) > 0, "a packet has a place at the peer");
            }
            end_.posted(++tickets_, now_);
            if (input_.below(4) == 0) continue;  // lost
            std::vector<std::byte> copy{packet.begin(), packet.end()};
            peers_.push_back(std::move(copy));
            (void)peer_.receive(peers_.back(), 0, now_);
            if (peers_.size() > 4 * most_packets) peers_.pop_front();
        }
        std::span<const std::byte> message;
        while (peer_.look(message) == Status::ok) peer_.pass();
        std::uint32_t slot;
        while (peer_.take_free(slot)) {
        }
    }
    /// What the peer's own state machine would say next, perhaps with some of it changed.
    void honest() {
        std::span<const std::byte> packet;
        if (!peer_.next(packet, now_)) return;
        std::vector<std::byte> copy{packet.begin(), packet.end()};
        peer_.posted(++peers_tickets_, now_);
        peer_.completed(peers_tickets_);
        if (input_.below(4) == 0) {
            copy[8 + input_.below(24)] = input_.take<std::byte>();
            if (input_.below(8) == 0) copy.resize(input_.below(packet_bytes));
        }
        arrive(copy);
    }
    void invented() {
        const std::uint32_t truth = end_.end();
        PacketHead head{.token = 1,
                        .received = input_.below(4) == 0 ? input_.take<std::uint64_t>() : 0,
                        .sequence = terms_.own_first + received_ + input_.below(80) - 8,
                        .acknowledged = truth - input_.below(70),
                        .room = static_cast<std::uint16_t>(input_.below(70)),
                        .length = static_cast<std::uint16_t>(input_.below(64)),
                        .flags = static_cast<std::uint16_t>(input_.below(32))};
        std::vector<std::byte> packet(packet_head_bytes + head.length, std::byte{5});
        std::memcpy(packet.data(), &head, sizeof head);
        arrive(packet);
    }
    void arrive(const std::vector<std::byte>& packet) {
        std::uint32_t slot = 0;
        while (slot < slots_.size() && slots_[slot].is_kept) ++slot;
        require(slot < slots_.size(), "no more is kept than there is room for");
        // Of the exact length, so that a sanitizer sees who reads beyond it.
        slots_[slot].bytes = packet;
        const std::uint64_t before = end_.counts().received;
        if (end_.receive(slots_[slot].bytes, slot, now_, input_.below(16) != 0) ==
            PacketStream::Arrival::kept) {
            slots_[slot].is_kept = true;
        } else {
            slots_[slot].bytes = {};
        }
        received_ += static_cast<std::uint32_t>(end_.counts().received - before);
        PacketHead head;
        std::span<const std::byte> payload;
        if (end_.failure().empty() && parse(packet, head, payload) && head.token == 1) {
            // What was acknowledged long ago is of a packet that others have overtaken. Numbers
            // wrap: of 2^31 packets ago, it would seem to be to come.
            const std::int32_t behind = distance(head.acknowledged, end_.end());
            const std::uint32_t limit = head.acknowledged + head.room;
            if (behind >= 0 && behind <= static_cast<std::int32_t>(2 * most_packets) &&
                distance(limit_, limit) > 0) {
                limit_ = limit;
            }
        }
    }
    void give_back(std::uint32_t slot) {
        require(slot < slots_.size() && slots_[slot].is_kept, "a place is given back once");
        slots_[slot] = {};
    }

    struct Slot {
        std::vector<std::byte> bytes;
        bool is_kept = false;
    };
    Input& input_;
    std::vector<Slot> slots_;
    alignas(16) std::array<std::byte, memory_bytes> memory_{};
    alignas(16) std::array<std::byte, memory_bytes> peer_memory_{};
    PacketTerms terms_;
    PacketStream end_;
    PacketStream peer_;                         ///< honest, as long as what it is told makes sense
    std::deque<std::vector<std::byte>> peers_;  ///< what it has got
    PacketStream::Time now_{std::chrono::seconds{1}};
    std::uint64_t tickets_ = 0;
    std::uint64_t peers_tickets_ = 0;
    std::uint32_t received_ = 0;
    std::uint32_t limit_ = terms_.peer_first + terms_.peer_room;
    std::uint64_t sum_ = 0;
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
