// The words of a session, as they travel.
#include "millrace/message/session.hpp"
#include "millrace/base/detail/random.hpp"

#include <cstring>

namespace millrace::message {

namespace {

/// Laid one after the other, without gaps.
class Laid {
  public:
    explicit Laid(std::byte* at) noexcept : at_{at} {}
    template <class Number>
    Laid& put(Number number) noexcept {
        std::memcpy(at_, &number, sizeof number);
        at_ += sizeof number;
        return *this;
    }

  private:
    std::byte* at_;
};

class Taken {
  public:
    explicit Taken(const std::byte* at) noexcept : at_{at} {}
    template <class Number>
    Taken& get(Number& number) noexcept {
        std::memcpy(&number, at_, sizeof number);
        at_ += sizeof number;
        return *this;
    }

  private:
    const std::byte* at_;
};

}  // namespace

std::string_view name_of(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::ok: return "ok";
        case Outcome::failed: return "failed";
        case Outcome::dropped: return "dropped";
        case Outcome::overloaded: return "overloaded";
        case Outcome::draining: return "draining";
        case Outcome::too_large: return "too_large";
        case Outcome::cancelled: return "cancelled";
        case Outcome::expired: return "expired";
        case Outcome::session_lost: return "session_lost";
        case Outcome::timed_out: return "timed_out";
        case Outcome::closed: return "closed";
        case Outcome::peer_lost: return "peer_lost";
    }
    return "unknown";
}

Outcome outcome_of(base::Status status) noexcept {
    switch (status) {
        case base::Status::too_large: return Outcome::too_large;
        case base::Status::cancelled: return Outcome::cancelled;
        case base::Status::timed_out: return Outcome::timed_out;
        case base::Status::closed: return Outcome::closed;
        default: return Outcome::peer_lost;
    }
}

std::string_view name_of(Polling polling) noexcept {
    switch (polling) {
        case Polling::automatic: return "automatic";
        case Polling::flag: return "flag";
        case Polling::dense: return "dense";
        case Polling::shared: return "shared";
    }
    return "unknown";
}

SessionName SessionName::random() {
    SessionName name;
    while (name.is_none()) {
        for (std::uint64_t& part : name.bits) part = base::random_bits();
    }
    return name;
}

std::array<std::byte, hello_bytes> pack(const Hello& hello) noexcept {
    std::array<std::byte, hello_bytes> bytes;
    Laid{bytes.data()}
        .put(hello.session.bits)
        .put(hello.window)
        .put(std::uint32_t{hello.resumes})
        .put(hello.next_id)
        .put(hello.max_answer)
        .put(std::uint64_t{hello.reads_large} | std::uint64_t{hello.batches} << 2);
    return bytes;
}

std::optional<Hello> parse_hello(std::span<const std::byte> payload) noexcept {
    if (payload.size() != hello_bytes) return std::nullopt;
    Hello hello;
    std::uint32_t resumes = 0;
    std::uint64_t abilities = 0;
    Taken{payload.data()}
        .get(hello.session.bits)
        .get(hello.window)
        .get(resumes)
        .get(hello.next_id)
        .get(hello.max_answer)
        .get(abilities);
    hello.resumes = resumes == 1;
    hello.reads_large = (abilities & 1) != 0;
    hello.batches = (abilities & 4) != 0;
    const bool allowed = resumes <= 1 && (abilities & ~std::uint64_t{5}) == 0 &&
                         hello.window >= 1 && hello.window <= largest_window &&
                         hello.next_id >= 1 && hello.next_id <= largest_request_id;
    return allowed ? std::optional{hello} : std::nullopt;
}

std::array<std::byte, welcome_bytes> pack(const Welcome& welcome) noexcept {
    std::array<std::byte, welcome_bytes> bytes;
    Laid{bytes.data()}
        .put(welcome.session.bits)
        .put(welcome.client)
        .put(welcome.generation)
        .put(welcome.window)
        .put(static_cast<std::uint16_t>(welcome.resumed))
        .put(static_cast<std::uint16_t>(welcome.polling))
        .put(welcome.mailbox)
        .put(welcome.mailbox_rkey)
        .put(welcome.server)
        .put(welcome.max_request)
        .put(std::uint64_t{welcome.reads_large} | std::uint64_t{welcome.batches} << 1);
    return bytes;
}

std::optional<Welcome> parse_welcome(std::span<const std::byte> payload) noexcept {
    if (payload.size() != welcome_bytes) return std::nullopt;
    Welcome welcome;
    std::uint16_t resumed = 0;
    std::uint16_t polling = 0;
    std::uint64_t abilities = 0;
    Taken{payload.data()}
        .get(welcome.session.bits)
        .get(welcome.client)
        .get(welcome.generation)
        .get(welcome.window)
        .get(resumed)
        .get(polling)
        .get(welcome.mailbox)
        .get(welcome.mailbox_rkey)
        .get(welcome.server)
        .get(welcome.max_request)
        .get(abilities);
    welcome.resumed = resumed == 1;
    welcome.reads_large = (abilities & 1) != 0;
    welcome.batches = (abilities & 2) != 0;
    welcome.polling = static_cast<Polling>(polling);
    const bool allowed = resumed <= 1 && abilities <= 3 && !welcome.session.is_none() &&
                         welcome.window >= 1 && welcome.window <= largest_window &&
                         (polling == static_cast<std::uint16_t>(Polling::flag) ||
                          polling == static_cast<std::uint16_t>(Polling::dense));
    return allowed ? std::optional{welcome} : std::nullopt;
}

std::array<std::byte, announcement_bytes> pack(const Announcement& one) noexcept {
    std::array<std::byte, announcement_bytes> bytes;
    Laid{bytes.data()}
        .put(one.address)
        .put(one.rkey)
        .put(std::uint32_t{one.is_in_order})
        .put(one.length);
    return bytes;
}

std::optional<Announcement> parse_announcement(std::span<const std::byte> payload) noexcept {
    if (payload.size() != announcement_bytes) return std::nullopt;
    Announcement one;
    std::uint32_t is_in_order = 0;
    Taken{payload.data()}.get(one.address).get(one.rkey).get(is_in_order).get(one.length);
    one.is_in_order = is_in_order == 1;
    return is_in_order <= 1 ? std::optional{one} : std::nullopt;
}

}  // namespace millrace::message
