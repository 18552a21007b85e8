// A lying peer of a reliable connection: an input is a list of steps of one end: what its program
// posts, packets that an honest peer sends, those with bits of them changed, and invented ones
// near the PSNs that are awaited; time that passes, and an outlet that has little room.
//
// Required: every call returns; memory is asked for within each request, and what a READ brings is
// placed in order, once; requests complete in the order of posting, each once, none after one
// failed; bytes of a message are placed in order, into a receive that was claimed or where a WRITE
// was allowed; and whatever leaves is a packet.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "roce/requester.hpp"
#include "roce/responder.hpp"
#include "roce/unreliable.hpp"

namespace millrace::fuzz {
namespace {

using namespace roce;

constexpr std::uint32_t most_steps = 400;
constexpr std::uint32_t slots = 8;
constexpr std::uint32_t reads = 2;
constexpr std::uint32_t most_length = 3000;
constexpr std::uint32_t key = 7;
constexpr std::size_t most_packet = 512;
constexpr std::uint32_t first_psn = 0xfffffa;

/// Has room for some packets, and keeps the last one.
class Hole final : public Outlet {
  public:
    std::uint8_t* begin(std::size_t bytes) noexcept override {
        require(bytes <= bytes_.size(), "a packet is no longer than its MTU and headers");
        if (room == 0) return nullptr;
        size_ = bytes;
        return bytes_.data();
    }
    void commit() noexcept override {
        --room;
        Packet packet{};
        require(parse(last(), packet) == Defect::none, "what leaves is a packet");
    }
    [[nodiscard]] std::span<const std::uint8_t> last() const { return {bytes_.data(), size_}; }

    std::uint32_t room = 0;

  private:
    std::array<std::uint8_t, most_packet> bytes_{};
    std::size_t size_ = 0;
};

class Sends final : public SendSide {
  public:
    Status gather(std::uint32_t slot, std::uint32_t offset,
                  std::span<std::uint8_t> to) noexcept override {
        require(is_waiting(slot), "a request that is complete is not sent again");
        require(offset + to.size() <= lengths[slot % slots], "within the request");
        std::memset(to.data(), 1, to.size());
        return Status::success;
    }
    Status scatter(std::uint32_t slot, std::uint32_t offset,
                   std::span<const std::uint8_t> from) noexcept override {
        require(slot == completed, "data is of the oldest request");
        require(offset == placed_, "in order, each once");
        placed_ = offset + static_cast<std::uint32_t>(from.size());
        require(placed_ <= lengths[slot % slots], "within the request");
        return Status::success;
    }
    Status run_local(std::uint32_t slot) noexcept override {
        require(slot == completed, "in its turn");
        return Status::success;
    }
    void complete(std::uint32_t slot) noexcept override {
        require(is_waiting(slot) && slot == completed && !has_failed, "in order, each once");
        require(!brings_data[slot % slots] || placed_ == lengths[slot % slots], "with its data");
        placed_ = 0;
        ++completed;
    }
    void fail(std::uint32_t slot, Status why) noexcept override {
        require(is_waiting(slot) && slot == completed && !has_failed, "the oldest one fails");
        require(why != Status::success, "for a reason");
        has_failed = true;
    }
    [[nodiscard]] bool is_waiting(std::uint32_t slot) const {
        return slot - completed < posted - completed;
    }

    std::array<std::uint32_t, slots> lengths{};
    std::array<bool, slots> brings_data{};
    std::uint32_t posted = 0;
    std::uint32_t completed = 0;
    bool has_failed = false;

  private:
    std::uint32_t placed_ = 0;
};

class Receives final : public ReceiveSide {
  public:
    Outcome claim() noexcept override {
        if (has_claimed_) return Outcome::done;
        if (posted == 0) return Outcome::no_receive;
        --posted;
        has_claimed_ = true;
        return Outcome::done;
    }
    Outcome begin_write(std::uint32_t its_key, std::uint64_t,
                        std::uint32_t length) noexcept override {
        require(length != 0 && length <= most_message_bytes, "a WRITE of some bytes");
        if (its_key != key) return Outcome::remote_access;
        writes_ = length;
        return Outcome::done;
    }
    Outcome place(std::uint32_t offset, std::span<const std::uint8_t> bytes) noexcept override {
        require(writes_ != 0 || has_claimed_, "there is a place for it");
        require(offset == placed_ && !bytes.empty(), "in order, each once");
        placed_ = offset + static_cast<std::uint32_t>(bytes.size());
        if (writes_ != 0) {
            require(placed_ <= writes_, "within the WRITE");
            return Outcome::done;
        }
        if (placed_ <= most_length) return Outcome::done;
        has_claimed_ = false;
        return Outcome::invalid_request;
    }
    Outcome finish(const Arrival& arrival) noexcept override {
        require(arrival.length == placed_, "of all that came");
        require(!arrival.is_write || placed_ == writes_, "a WRITE is as long as it said");
        const bool takes_receive = !arrival.is_write || arrival.has_immediate;
        require(has_claimed_ || !takes_receive, "with a receive");
        // One of an abandoned message stays for the next that takes one.
        has_claimed_ = has_claimed_ && !takes_receive;
        writes_ = 0;
        placed_ = 0;
        return Outcome::done;
    }
    void abandon() noexcept override {
        writes_ = 0;
        placed_ = 0;
    }
    Outcome check_read(std::uint32_t its_key, std::uint64_t,
                       std::uint32_t length) noexcept override {
        require(length != 0 && length <= most_message_bytes, "a READ of some bytes");
        return its_key == key ? Outcome::done : Outcome::remote_access;
    }
    Outcome read(std::uint32_t its_key, std::uint64_t,
                 std::span<std::uint8_t> to) noexcept override {
        require(its_key == key && !to.empty(), "what was checked is read");
        std::memset(to.data(), 2, to.size());
        return Outcome::done;
    }
    Outcome atomic(Operation, std::uint32_t its_key, std::uint64_t address, std::uint64_t,
                   std::uint64_t, std::uint64_t& original) noexcept override {
        require(address % 8 == 0, "at an aligned address");
        original = 3;
        return its_key == key ? Outcome::done : Outcome::remote_access;
    }
    void failed(Status why) noexcept override {
        require(!has_failed && why != Status::success, "once, for a reason");
        has_failed = true;
    }

    std::uint32_t posted = 0;
    bool has_failed = false;

  private:
    bool has_claimed_ = false;
    std::uint32_t writes_ = 0;  ///< bytes
    std::uint32_t placed_ = 0;
};

class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        RequesterAttributes asks;
        asks.first_psn = first_psn;
        asks.mtu = 256;
        asks.most_reads = reads;
        asks.window = 16;
        ResponderAttributes answers;
        answers.first_psn = first_psn;
        answers.mtu = 256;
        answers.most_reads = reads;
        UnreliableAttributes unreliable;
        unreliable.first_psn = first_psn;
        unreliable.mtu = 256;
        requester_.start(asks);
        responder_.start(answers);
        receiver_.start(unreliable);
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        hole_.room = UINT32_MAX;
        require(sends_.has_failed || requester_.is_idle() == (sends_.completed == sends_.posted),
                "it is idle when all is complete");
        const std::uint32_t left = requester_.abort();
        require(left + sends_.completed + (sends_.has_failed ? 1 : 0) == sends_.posted,
                "every request ends once");
    }

  private:
    void step() {
        switch (input_.below(8)) {
            case 0: post(); break;
            case 1:
                receives_.posted += input_.below(3);
                unreliable_receives_.posted += input_.below(3);
                break;
            case 2:
                hole_.room = input_.below(40);
                (void)requester_.send(now_, hole_);
                break;
            case 3:
                hole_.room = input_.below(40);
                (void)responder_.send(now_, hole_, input_.below(2) == 0);
                break;
            case 4: pass_time(); break;
            case 5: arrive_changed(); break;
            default: arrive_invented(); break;
        }
    }

    void post() {
        if (sends_.posted - sends_.completed == slots || sends_.has_failed) return;
        Request request{};
        request.operation = static_cast<Operation>(input_.below(9));
        request.fence = input_.below(8) == 0;
        request.slot = sends_.posted;
        const bool is_atomic = request.operation == Operation::compare_swap ||
                               request.operation == Operation::fetch_add;
        request.length = is_atomic ? 8 : input_.below(most_length);
        sends_.lengths[request.slot % slots] = request.length;
        sends_.brings_data[request.slot % slots] =
            is_atomic || request.operation == Operation::read;
        ++sends_.posted;
        requester_.post(request);
    }

    void pass_time() {
        const std::int64_t due =
            std::min(requester_.next_deadline(), responder_.next_deadline());
        now_ += input_.take<std::uint16_t>();
        if (due != never && input_.below(2) == 0) now_ = std::max(now_, due);
        requester_.hold(input_.below(8) == 0);
    }

    /// What this end said last comes back, with bits of it changed.
    void arrive_changed() {
        std::array<std::uint8_t, most_packet> bytes;
        const auto last = hole_.last();
        std::memcpy(bytes.data(), last.data(), last.size());
        for (std::uint32_t i = input_.below(4); i < 3 && !last.empty(); ++i) {
            bytes[input_.below(static_cast<std::uint32_t>(last.size()))] ^=
                static_cast<std::uint8_t>(1U << input_.below(8));
        }
        Packet packet{};
        if (parse({bytes.data(), last.size()}, packet) == Defect::none) arrive(packet);
    }

    void arrive_invented() {
        static constexpr std::array<std::uint8_t, 512> payload{};
        Packet packet{};
        packet.service = Service::rc;
        packet.kind = static_cast<Kind>(input_.below(0x18));
        packet.asks_acknowledge = input_.below(2) == 0;
        packet.psn = psn_after(first_psn, psn_ + input_.below(8) - 2);
        if (input_.below(32) == 0) packet.psn = input_.take<std::uint32_t>() & psn_mask;
        if (input_.below(2) == 0) ++psn_;
        packet.remote_key = input_.below(8) == 0 ? 0 : key;
        packet.address = input_.below(64) == 0 ? 1 : 8;
        const bool is_any_length = input_.below(16) == 0;
        packet.length = is_any_length ? input_.take<std::uint32_t>() : 256 * input_.below(4);
        packet.syndrome = input_.take<std::uint8_t>();
        const std::uint32_t size = input_.below(4) == 0 ? input_.below(300) : 256;
        packet.payload = std::span{payload}.first(input_.below(8) == 0 ? 0 : size);
        arrive(packet);
    }

    void arrive(const Packet& packet) {
        if (is_answer(packet.kind)) {
            requester_.arrived(packet, now_);
        } else {
            responder_.arrived(packet, now_);
            if (packet.kind <= Kind::write_only_immediate) receiver_.arrived(packet);
        }
    }

    Input& input_;
    Hole hole_;
    Sends sends_;
    Receives receives_;
    Receives unreliable_receives_;
    Requester requester_{sends_, slots, reads};
    Responder responder_{receives_, reads};
    UnreliableReceiver receiver_{unreliable_receives_};
    std::uint32_t psn_ = 0;
    std::int64_t now_ = 1;
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
