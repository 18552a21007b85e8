// A lying peer of the connection manager: an input is a list of steps of two ends: what their
// programs do, MADs that the peer said, those with bits of them changed, and invented ones; time
// that passes, and the carrier's end.
//
// Required: every call returns; bytes that are read are said again as they were understood; each
// event is told at most once, none after the close, and TIMEWAIT_EXIT only after DISCONNECTED; the
// first that an active program hears is an answer, a refusal or that there is none; a command that
// fails changes nothing; nothing is said to a carrier that hung up; and when nobody says anything
// any more, the wait ends.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "connection.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"

namespace millrace::fuzz {
namespace {

using namespace cm;

constexpr std::uint32_t most_steps = 400;
/// Each of them a wait of its own: of a request, a disconnect, a timewait.
constexpr int most_expiries = 3 * 17;

class End {
  public:
    End(std::uint32_t comm_id, bool is_active)
        : connection_{comm_id, guid_of(comm_id)}, is_active_{is_active} {}

    static std::uint64_t guid_of(std::uint32_t comm_id) { return 0x0200c00000000000 | comm_id; }

    /// The MAD that the call said, if it did.
    std::optional<Mad> keep(const Step& step) {
        require(step.error == 0 || !(step.mad || step.event), "a command that fails says nothing");
        if (step.event) hear(*step.event);
        if (step.mad) require(!is_cut_, "nothing is said to a carrier that hung up");
        return step.mad;
    }
    void hear(const Event& event) {
        const auto kind = static_cast<std::uint32_t>(event.kind);
        require(!is_closed_, "no event after the close");
        require((heard_ & 1U << kind) == 0, "an event is told once");
        require(event.private_size <= most_private_bytes, "private data has an end");
        if (event.kind == EventKind::timewait_exit) {
            require((heard_ & 1U << static_cast<std::uint32_t>(EventKind::disconnected)) != 0,
                    "TIMEWAIT_EXIT is told after DISCONNECTED");
        }
        if (is_active_ && heard_ == 0) {
            require(
                event.kind != EventKind::disconnected && event.kind != EventKind::connect_request,
                "an active program hears what became of its request first");
        }
        heard_ |= 1U << kind;
    }

    std::optional<Mad> command(Input& input, Time now) {
        const State before = connection_.state();
        Terms terms;
        terms.qpn = input.take<std::uint32_t>() & 0xffffff;
        terms.starting_psn = input.take<std::uint16_t>();
        terms.retry_count = input.take<std::uint8_t>();
        const auto data = input.bytes(input.below(256));
        terms.private_data = data;
        Step step;
        switch (input.below(10)) {
            case 0: step = connection_.connect(destination(input), terms, now); break;
            case 1: step = connection_.resolve(1, {}, 0xffff, data, now); break;
            case 2: step = connection_.accept(terms, now); break;
            case 3: step = connection_.confirm(now); break;
            case 4:
                step =
                    connection_.answer(SidrStatus{input.take<std::uint8_t>()}, terms.qpn, 1, data);
                break;
            case 5:
                step = connection_.reject(RejectReason{input.take<std::uint16_t>()}, data, now);
                break;
            case 6:
            case 7: step = connection_.disconnect(now); break;
            case 8: step = connection_.establish(now); break;
            default:
                if (input.below(4) != 0) return std::nullopt;
                step = connection_.close(now);
                is_closed_ = true;
                break;
        }
        if (step.error != 0) {
            require(connection_.state() == before, "a command that fails changes nothing");
        }
        return keep(step);
    }
    std::optional<Mad> hang_up(Time now) {
        is_cut_ = true;
        return keep(connection_.hang_up(now));
    }
    void look() const {
        require(!connection_.is_over() || !connection_.deadline(),
                "what is over waits for nothing");
        require(!connection_.has_peer() || connection_.has_path(),
                "a peer is at the end of a path");
    }

    Connection connection_;

  private:
    static Destination destination(Input& input) {
        Destination to;
        to.service_id = service_id(PortSpace::tcp, input.take<std::uint16_t>());
        to.transport = TransportType{static_cast<std::uint8_t>(input.below(4))};
        to.path.hop_limit = input.take<std::uint8_t>();
        return to;
    }

    bool is_active_;
    bool is_cut_ = false;
    bool is_closed_ = false;
    std::uint32_t heard_ = 0;
};

class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        said(active_, active_.keep(active_.connection_.connect({}, {}, now_)));
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        for (End* end : {&active_, &passive_}) {
            int expiries = 0;
            while (const auto due = end->connection_.deadline()) {
                require(++expiries <= most_expiries, "the wait ends");
                now_ = std::max(now_, *due);
                (void)end->keep(end->connection_.expire(now_));
                end->look();
            }
        }
    }

  private:
    void step() {
        End& end = input_.below(2) == 0 ? active_ : passive_;
        switch (input_.below(8)) {
            case 0:
            case 1: said(end, end.command(input_, now_)); break;
            case 2:
            case 3: arrive(end, to_other_[&end == &active_ ? 1 : 0]); break;
            case 4: {
                MadBytes bytes = to_other_[&end == &active_ ? 1 : 0];
                for (std::uint32_t i = input_.below(4); i < 4; ++i) {
                    bytes[input_.below(4) == 0 ? input_.below(256) : 16 + input_.below(48)] ^=
                        static_cast<std::uint8_t>(1U << input_.below(8));
                }
                arrive(end, bytes);
                break;
            }
            case 5: invented(end); break;
            case 6:
                now_ += std::chrono::milliseconds{input_.take<std::uint16_t>()};
                if (input_.below(2) == 0 && end.connection_.deadline()) {
                    now_ = std::max(now_, *end.connection_.deadline());
                }
                said(end, end.keep(end.connection_.expire(now_)));
                break;
            default:
                if (input_.below(16) == 0) said(end, end.hang_up(now_));
                break;
        }
        end.look();
    }

    void said(End& end, const std::optional<Mad>& mad) {
        if (mad) to_other_[&end == &active_ ? 0 : 1] = encode(*mad);
    }
    void arrive(End& end, const MadBytes& bytes) {
        const auto mad = decode(bytes);
        if (!mad) return;
        require(decode(encode(*mad)) == mad, "a MAD is said as it was understood");
        if (const auto refusal = refuse(*mad)) {
            require(decode(encode(*refusal)) == refusal, "a refusal is a MAD");
        }
        said(end, end.keep(end.connection_.receive(*mad, now_)));
    }
    /// The header and the comm ids make sense, the rest is the input's.
    void invented(End& end) {
        MadBytes bytes{};
        std::ranges::copy(std::array<std::uint8_t, 4>{1, 7, 2, 3}, bytes.begin());
        bytes[17] = static_cast<std::uint8_t>(0x10 + input_.below(9));
        const auto body = input_.bytes(input_.below(233));
        std::ranges::copy(body, bytes.begin() + 24);
        const std::uint8_t sender = &end == &active_ ? passive_id : active_id;
        const std::uint8_t receiver = &end == &active_ ? active_id : passive_id;
        const bool has_ids = input_.below(4) != 0;
        if (has_ids)
            std::ranges::copy(std::array<std::uint8_t, 4>{0, 0, 0, sender}, bytes.begin() + 24);
        if (has_ids) {
            std::ranges::copy(std::array<std::uint8_t, 4>{0, 0, 0, receiver}, bytes.begin() + 28);
        }
        arrive(end, bytes);
    }

    static constexpr std::uint8_t active_id = 1;
    static constexpr std::uint8_t passive_id = 2;
    Input& input_;
    End active_{active_id, true};
    End passive_{passive_id, false};
    std::array<MadBytes, 2> to_other_{};  ///< what each end said last
    Time now_{std::chrono::seconds{1}};
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
