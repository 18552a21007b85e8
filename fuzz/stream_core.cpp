// A lying peer of a byte stream: an input chooses terms, and is a list of steps: what the program
// asks for, messages that an honest peer would send, those with bytes of them changed, and invented
// ones, to both halves of an end.
//
// Required: every call returns; a copy stays within the ring and a buffer that is outstanding, a
// transfer within sends that are and, at the peer, within the ring or an advertisement; no message
// is sent without a credit, and none behind a violation; every buffer comes back exactly once.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <variant>
#include <vector>

#include "connection.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"

namespace millrace::fuzz {
namespace {

using namespace stream;
using base::Status;

constexpr std::uint32_t most_steps = 200;

Terms chosen_terms(Input& input) {
    Terms terms;
    const std::uint32_t kind = input.below(6);
    terms.outgoing.mode = static_cast<Mode>(kind % 3);
    terms.outgoing.ring_bytes = std::uint64_t{1} << input.below(8);
    if (kind >= 3)
        terms.outgoing.mark_bytes = std::min<std::uint64_t>(4, terms.outgoing.ring_bytes);
    terms.outgoing.adverts = 1 + input.below(8);
    terms.incoming = terms.outgoing;
    terms.own_slots = terms.peer_slots = fewest_slots + input.below(20);
    terms.sends = terms.receives = 1 + input.below(8);
    terms.transfer_bytes = 1 + input.take<std::uint8_t>();
    terms.coalesced_bytes = input.take<std::uint8_t>();
    return terms;
}

class Session {
  public:
    explicit Session(Input& input)
        : input_{input}, terms_{chosen_terms(input)}, end_{terms_}, peer_{terms_} {}

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        end_.break_off();
        act_all();
        for (const Buffer& buffer : sends_) require(!buffer.outstanding, "a send comes back");
        for (const Buffer& buffer : receives_) require(!buffer.outstanding, "a receive comes back");
    }

  private:
    struct Buffer {
        std::uint64_t length;
        bool outstanding;
    };
    struct Range {
        std::uint64_t begin;
        std::uint64_t length;
    };

    void step() {
        switch (input_.below(12)) {
            case 0: {
                const std::uint64_t length = input_.take<std::uint8_t>();
                const bool patient = input_.below(2) == 0;
                if (end_.send(sends_.size(), length, patient) == Status::ok)
                    sends_.push_back({length, true});
                break;
            }
            case 1: {
                const std::uint64_t length = input_.take<std::uint8_t>();
                const std::uint64_t id = receives_.size();
                if (end_.receive({id, id << 16, length, 1, input_.below(3) == 0}) == Status::ok) {
                    receives_.push_back({length, true});
                }
                break;
            }
            case 2: static_cast<void>(end_.cancel(input_.take<std::uint8_t>())); break;
            case 3:
                if (input_.below(8) == 0) end_.shut_down();
                if (input_.below(8) == 0) peer_.shut_down();
                break;
            case 4: static_cast<void>(peer_.send(peers_++, 1 + input_.below(64))); break;
            case 5:
                static_cast<void>(
                    peer_.receive({peers_, peers_ << 16, 1 + input_.below(64), 1, false}));
                ++peers_;
                break;
            case 6:
                if (input_.below(4) == 0) look_at_ring();
                [[fallthrough]];
            case 7: say(honest(), input_.below(4) == 0); break;
            case 8: say(invented(), input_.below(4) == 0); break;
            case 9:
                for (std::uint32_t some = input_.below(8); some > 0 && !to_peer_.empty(); --some) {
                    static_cast<void>(peer_.deliver(to_peer_.front().span()));
                    to_peer_.pop_front();
                }
                break;
            default: act_all(); break;
        }
        end_.written(flying_);
        flying_ = 0;
    }

    /// The program reads where the bytes lie.
    void look_at_ring() {
        if (end_.receiver().is_lent()) {
            end_.give_back(std::min<std::uint64_t>(lent_.length, input_.take<std::uint8_t>()));
        } else if (end_.lend(lent_)) {
            require(lent_.ring_offset + lent_.length <= terms_.incoming.ring_bytes,
                    "what is lent lies in the ring");
        }
    }

    /// What the peer's own state machine would say next; nothing, if nothing.
    EncodedMessage honest() {
        for (int i = 0; i < 100; ++i) {
            const Action action = peer_.next();
            if (const auto* const write = std::get_if<Write>(&action)) return write->notification;
            if (const auto* const message = std::get_if<SendMessage>(&action)) {
                return message->message;
            }
            if (std::holds_alternative<Idle>(action)) break;
        }
        return {};
    }

    std::uint64_t number(std::uint64_t truth) {
        const std::uint64_t small = input_.take<std::uint8_t>();
        switch (input_.below(6)) {
            case 0: return input_.take<std::uint64_t>();
            case 1: return truth + small;
            case 2: return truth - small;
            case 3: return ~std::uint64_t{0} - small;
            default: return truth;
        }
    }
    template <class Body>
    EncodedMessage with_credits(Body body) {
        body.header.credits = static_cast<std::uint32_t>(number(posted_));
        return encode(body);
    }
    EncodedMessage invented() {
        switch (input_.below(8)) {
            case 0: {
                AdvertMessage advert;
                advert.header.flags = input_.take<std::uint8_t>() & 1;
                advert.sequence = number(end_.sender().sequence());
                advert.phase = number(end_.sender().phase() + (end_.sender().phase() & 1));
                advert.address = number(0);
                advert.length = number(1);
                advert.number = static_cast<std::uint32_t>(number(adverts_));
                return with_credits(advert);
            }
            case 1:
            case 2: {
                const bool is_direct = input_.below(2) == 0;
                TransferMessage transfer;
                transfer.header.kind = is_direct ? MessageKind::direct : MessageKind::indirect;
                transfer.sequence = number(end_.receiver().sequence() + end_.receiver().buffered());
                transfer.length = static_cast<std::uint32_t>(number(1));
                if (terms_.incoming.keeps_messages()) {
                    transfer.header.flags = static_cast<std::uint8_t>(input_.below(8));
                }
                transfer.number = static_cast<std::uint32_t>(
                    number(end_.receiver().counts().adverts - end_.receiver().advertised()));
                return with_credits(transfer);
            }
            case 3: {
                AcknowledgementMessage acknowledgement;
                acknowledgement.taken = number(end_.sender().ring_written());
                return with_credits(acknowledgement);
            }
            case 4: return with_credits(CancelMessage{});
            case 5: {
                CancelledMessage cancelled;
                cancelled.sequence =
                    number(end_.receiver().sequence() + end_.receiver().buffered());
                return with_credits(cancelled);
            }
            case 6: {
                FinMessage fin;
                fin.sequence = number(end_.receiver().sequence() + end_.receiver().buffered());
                return with_credits(fin);
            }
            default: return with_credits(CreditMessage{});
        }
    }

    void say(const EncodedMessage& said, bool changed) {
        EncodedMessage message{};
        std::memcpy(message.bytes.data(), said.bytes.data(), said.size);
        message.size = said.size;
        if (changed) {
            message.bytes[input_.below(largest_message)] = input_.take<std::byte>();
            if (input_.below(8) == 0) message.size = input_.below(largest_message + 1);
        }
        Message decoded;
        const auto* advert = decode(message.span(), decoded) == Violation::none
                                 ? std::get_if<AdvertMessage>(&decoded)
                                 : nullptr;
        if (end_.deliver(message.span()) != Violation::none) return;
        returned_ = std::visit([](const auto& body) { return body.header.credits; }, decoded);
        if (advert == nullptr) return;
        ++adverts_;
        advertised_.push_back({advert->address, advert->length});
    }

    void act_all() {
        for (int i = 0;; ++i) {
            require(i < 10'000, "there is an end of what is to be done");
            const bool may_post = input_.empty() || input_.below(16) != 0;
            const Action action = end_.next(may_post);
            if (std::holds_alternative<Idle>(action)) return;
            std::visit([&](const auto& what) { perform(what); }, action);
        }
    }
    void perform(const Idle&) {}
    void perform(const Write& write) {
        const Transfer& transfer = write.transfer;
        std::uint64_t sum = 0;
        require((transfer.piece_count > 0 || terms_.outgoing.keeps_messages()) &&
                    transfer.piece_count <= most_pieces,
                "pieces");
        for (std::uint32_t i = 0; i < transfer.piece_count; ++i) {
            const Piece& piece = transfer.pieces[i];
            require(piece.send < sends_.size() && sends_[piece.send].outstanding &&
                        piece.offset + piece.length <= sends_[piece.send].length,
                    "a transfer takes from sends that are outstanding");
            sum += piece.length;
        }
        require(sum == transfer.length && sum <= terms_.transfer_bytes, "its length");
        require(transfer.places > 0 &&
                    (transfer.places == sum || transfer.places == sum + terms_.outgoing.mark_bytes),
                "its places");
        flying_ += transfer.places;
        bool granted = sum == 0;
        granted |= !transfer.direct && transfer.address + sum <= terms_.outgoing.ring_bytes;
        for (const Range& range : advertised_) {
            granted |= transfer.direct && transfer.address >= range.begin && sum <= range.length &&
                       transfer.address - range.begin <= range.length - sum;
        }
        require(granted, "a transfer goes where the peer lets it");
        post(write.notification);
    }
    void perform(const SendMessage& send) { post(send.message); }
    void post(const EncodedMessage& message) {
        require(end_.violation() == Violation::none, "nothing is said behind a violation");
        ++posted_;
        require(posted_ - returned_ <= terms_.peer_slots, "a message has a credit");
        to_peer_.push_back(message);
    }
    void perform(const CopyOut& copy) {
        require(copy.receive < receives_.size() && receives_[copy.receive].outstanding &&
                    copy.length > 0 && copy.offset + copy.length <= receives_[copy.receive].length,
                "a copy goes to a receive that is outstanding");
        require(copy.ring_offset + copy.length <= terms_.incoming.ring_bytes,
                "a copy comes from the ring");
    }
    void perform(const SendDone& done) {
        require(done.send < sends_.size() && sends_[done.send].outstanding, "a send ends once");
        sends_[done.send].outstanding = false;
    }
    void perform(const ReceiveDone& done) {
        require(done.receive < receives_.size() && receives_[done.receive].outstanding,
                "a receive ends once");
        require(done.length <= receives_[done.receive].length, "with no more than its length");
        receives_[done.receive].outstanding = false;
    }

    Input& input_;
    Terms terms_;
    Connection end_;
    Connection peer_;  ///< honest, as long as what it is told makes sense
    std::vector<Buffer> sends_;
    std::vector<Buffer> receives_;
    std::vector<Range> advertised_;
    std::deque<EncodedMessage> to_peer_;
    Lent lent_;
    std::uint64_t peers_ = 0;
    std::uint64_t flying_ = 0;
    std::uint32_t adverts_ = 0;
    std::uint32_t posted_ = 0;
    std::uint32_t returned_ = 0;
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
