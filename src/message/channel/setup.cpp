// How a channel comes to be: memory, the exchange of its addresses, listening and connecting.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "channel/channel_core.hpp"
#include "channel/setup.hpp"
#include "channel/shared_receives.hpp"
#include "lane/packet_setup.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/ring/detail/first_position.hpp"

namespace millrace::message {

namespace {

constexpr const char* setting_up_a_channel = "set up a message channel";

/// A channel without anything above it.
const Service channel_service{"message channel", 4};

/// What a peer asks for, if it is allowed.
Ways ways_for(connect::Link& link, const Facts& asked, const Allowed& allowed) {
    const auto way = [&](std::uint32_t by, bool may_be_send, const char* what) {
        if (by == static_cast<std::uint32_t>(Transfer::write)) return Transfer::write;
        if (by != static_cast<std::uint32_t>(Transfer::send)) {
            link.refuse(setting_up_a_channel, fmt::format("{} by way {}, which is none", what, by),
                        "use the same build of millrace on both sides");
        }
        if (!may_be_send) {
            link.refuse(setting_up_a_channel, fmt::format("{} by SEND are not allowed here", what),
                        "let them go by WRITE, or let the server allow it (ServerOptions)");
        }
        return Transfer::send;
    };
    return {.sends = way(asked.receives_by, allowed.sends_by_send, "answers"),
            .receives = way(asked.sends_by, allowed.receives_by_send, "requests"),
            .slot_bytes = allowed.slot_bytes,
            .shared = allowed.shared};
}

static_assert(sizeof(Facts) != sizeof(PacketFacts));

/// Receives are queued in the device, which has less place than memory has.
constexpr std::size_t most_credits = 1024;
[[nodiscard]] std::uint32_t credits_of(std::size_t ring_bytes, std::size_t slot_bytes) noexcept {
    return static_cast<std::uint32_t>(
        std::min(ring_bytes / std::min(slot_bytes, ring_bytes), most_credits));
}

}  // namespace

void check(const ChannelOptions& options) {
    if (!valid_ring(options.ring_bytes)) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message channel",
                          fmt::format("a ring of {} bytes", options.ring_bytes),
                          fmt::format("a ring's size is a power of two from {} to {}",
                                      smallest_ring, largest_ring),
                          "use the default of 262144, or the next power of two"};
    }
}

void check_slots(const char* attempted, std::size_t slot_bytes) {
    constexpr std::size_t largest_slot = std::size_t{64} << 10;
    if (valid_ring(slot_bytes) && slot_bytes <= largest_slot) return;
    throw base::Error{
        base::ErrorCode::invalid_argument, attempted,
        fmt::format("receives of {} bytes", slot_bytes),
        fmt::format("their size is a power of two from {} to {}", smallest_ring, largest_slot),
        "use the default of 512: longer messages travel in pieces"};
}

connect::LinkOptions link_options(const ChannelOptions& options, const Service& service) {
    return {.service = service.name,
            .service_version = service.version,
            .endpoint = options.endpoint,
            .max_send_requests = 128,
            .max_receive_requests = end::Sleeper::receives,
            .max_send_slices = 1,
            .max_inline = 128,
            .admission = options.admission};
}

std::unique_ptr<Channel::Core> set_up(connect::Link link, const ChannelOptions& options,
                                      const base::Deadline& deadline, const Ways& ways) {
    auto core = std::make_unique<Channel::Core>(std::move(link), options, ways);
    const Facts mine = core->facts();
    const auto theirs = core->link().exchange(connect::bytes_of(mine), deadline);
    core->meet(connect::facts_in<Facts>(theirs, setting_up_a_channel, core->link().peer_name()));
    return core;
}

std::unique_ptr<Channel::Core> set_up_accepted(connect::Link link, const ChannelOptions& options,
                                               const base::Deadline& deadline,
                                               const Allowed& allowed) {
    const auto theirs = link.hear(deadline);
    if (theirs.size() == sizeof(PacketFacts)) {
        link.refuse(setting_up_a_channel, "its requests go through a shared buffer: there is none",
                    "let them go by WRITE or by SEND (ClientOptions::requests), or let the server "
                    "have one (ServerOptions::polling = Polling::shared)");
    }
    const Facts facts = connect::facts_in<Facts>(theirs, setting_up_a_channel, link.peer_name());
    const Ways ways = ways_for(link, facts, allowed);
    auto core = std::make_unique<Channel::Core>(std::move(link), options, ways);
    if (facts.ring_bytes <= options.max_peer_ring_bytes &&
        (ways.sends == Transfer::send ||
         !ring::PeerMemory::behind(core->link(), options.carrier, {}).stores())) {
        core->link().reserve(facts.ring_bytes);  // for the copy to send from, see meet()
    }
    const Facts mine = core->facts();
    core->link().say(connect::bytes_of(mine));
    core->meet(facts);
    return core;
}

std::uint32_t receives_for(std::size_t ring_bytes, std::size_t slot_bytes) noexcept {
    return credits_of(ring_bytes, slot_bytes) + Incoming::beside;
}

namespace {
/// Of an end's own memory, for what it receives.
[[nodiscard]] std::size_t bytes_to_receive(const ChannelOptions& options, const Ways& ways) {
    if (ways.receives == Transfer::write) return options.ring_bytes;
    if (ways.shared != nullptr) return 0;
    const std::size_t slot = std::min(ways.slot_bytes, options.ring_bytes);
    return slot * receives_for(options.ring_bytes, slot);
}

/// As ChannelFigures::show sets them.
constexpr base::Figure figures_of_channels[] = {
    {"messages sent"},  {"bytes sent"},     {"messages received"},
    {"bytes received"}, {"pieces sent"},    {"pieces received"},
    {"frame writes"},   {"other writes"},   {"credit writes"},
    {"credit reads"},   {"full"},           {"sleeps"},
    {"events sent"},    {"events received"}};
static_assert(std::size(figures_of_channels) == ChannelFigures::figures);

[[nodiscard]] std::string title_of(const std::string& name) {
    std::string title = name.empty() ? "message channel" : "message channel " + name;
    title.resize(std::min(title.size(), base::StatisticsPage::longest_title));
    return title;
}

/// With the endpoint whose domain the channel's memory is of.
[[nodiscard]] ChannelOptions of_domain(const connect::Link& link, ChannelOptions chosen) {
    chosen.endpoint = link.shared_endpoint();
    return chosen;
}

/// Rings begin at pages. Those that the clients of a process write to have their first frames
/// spread over a page, each by a step from the one before: else the places where the next frames of
/// many idle peers are awaited share one set of the cache, and a look at one drives out another's.
/// By steps, processors fetch the next one's ahead for who goes round; and a step is of two lines,
/// as some fetch lines by pairs.
[[nodiscard]] std::uint64_t usual_first_position(const Ways& ways) {
    constexpr std::uint64_t page = 4096;
    constexpr std::uint64_t step = 2 * frame_alignment;
    static const std::uint64_t first = base::random_bits();
    static std::atomic<std::uint64_t> made{0};
    if (!ways.begins_anywhere || ways.sends != Transfer::write) return 0;
    return (first + made.fetch_add(1, std::memory_order_relaxed)) % (page / step) * step;
}
}  // namespace

Channel::Core::Core(connect::Link connected, const ChannelOptions& chosen, const Ways& chosen_ways)
    : options{of_domain(connected, chosen)},
      ways{chosen_ways},
      first_position{ring::detail::first_position(usual_first_position(chosen_ways))},
      receive_bytes{bytes_to_receive(chosen, chosen_ways)},
      memory{connected.allocate_packed(receive_bytes + sizeof(ControlPage),
                                       verbs::Access::remote_write | verbs::Access::remote_read)},
      end{std::move(connected)},
      figures{title_of(chosen.name), figures_of_channels} {
    own_page = new (memory.data() + receive_bytes) ControlPage{};
    sleeper.emplace(*this);
    end.sleep_by(*sleeper);
    // The peer may push credit as soon as it knows our address: the beginning is stored before.
    transmitted.begin(first_position);
    reusable = first_position;
    consumed = ring::PeerPosition{first_position};
    page().credit.store(ring::PositionWord::pack(first_position));
    if (ways.sends == Transfer::send) {
        posting = Posting::send;
    } else if (!link().writes_in_order()) {
        posting = Posting::two_writes;
    }
    if (options.posting.inlines) max_inline = link().queue_pair().capacity().max_inline_data;
    if (!options.posting.signals_selectively) signal = end::Signal::now;
    secret = base::random_bits();
    if (is_told_of_events()) post_receives();
}

void Channel::Core::post_receives() {
    if (ways.receives == Transfer::send) {
        ways.slot_bytes = std::min(ways.slot_bytes, options.ring_bytes);
        const std::uint32_t credits = credits_of(options.ring_bytes, ways.slot_bytes);
        options.ring_bytes = credits * ways.slot_bytes;
        if (ways.shared != nullptr) {
            incoming.emplace(*ways.shared, ways.shared->slots(), credits);
        } else {
            incoming.emplace(link().queue_pair(),
                             Slots{.begin = memory.data(),
                                   .slot_bytes = ways.slot_bytes,
                                   .count = credits + Incoming::beside,
                                   .key = memory.slice(0, ways.slot_bytes).lkey});
            if (!incoming->post_all()) {
                throw base::Error{base::ErrorCode::verbs, "post the receives of messages",
                                  fmt::format("queue pair {}", link().queue_pair().number()),
                                  "the queue pair refused a receive",
                                  "ask for a smaller ring (ring_bytes)"};
            }
        }
    }
    if (ways.shared != nullptr) ways.shared->add(*this);
}

Channel::Core::~Core() {
    if (ways.shared == nullptr) return;
    // What has completed is told to who is here still; what this end holds is posted again.
    ways.shared->poll();
    link().queue_pair().fail();
    ways.shared->poll();
    ways.shared->remove(*this);
    for (; incoming.has_value() && !incoming->empty(); incoming->pop()) {
        (void)incoming->post(incoming->front().slot);
    }
}

// A far fence interrupts every other processor, one caller at a time: some 10 us, where a fence of
// one's own is 20 ns. So it is for ends that rarely sleep.
bool Channel::Core::leaves_fences() noexcept {
    constexpr std::chrono::microseconds at_once{5};
    const bool sleeps_at_once =
        options.wait.sleep && options.wait.spin < at_once && options.wait.yield < at_once;
    return !sleeps_at_once && end::can_make_far_fences(link());
}

Facts Channel::Core::facts() {
    const verbs::RemoteAddress ring = memory.remote();
    const verbs::RemoteAddress page_address = memory.remote(receive_bytes);
    return {.ring_address = ring.address,
            .ring_bytes = options.ring_bytes,
            .control_address = page_address.address,
            .ring_rkey = ring.rkey,
            .control_rkey = page_address.rkey,
            .first_position = first_position,
            .max_peer_ring_bytes = options.max_peer_ring_bytes,
            .secret = secret,
            .far_fences = leaves_fences() ? 1U : 0U,
            .sends_by = static_cast<std::uint32_t>(ways.sends),
            .receives_by = static_cast<std::uint32_t>(ways.receives),
            .slot_bytes = incoming.has_value() ? incoming->slot_bytes() : 0};
}

void Channel::Core::meet(const Facts& peer) {
    if (!valid_ring(peer.ring_bytes) || peer.first_position % frame_alignment != 0) {
        throw base::Error{base::ErrorCode::protocol, "set up a message channel",
                          fmt::format("peer {}", link().peer_name()),
                          fmt::format("it offers a ring of {} bytes beginning at position {}",
                                      peer.ring_bytes, peer.first_position),
                          "use the same build of millrace on both sides"};
    }
    if (peer.ring_bytes > options.max_peer_ring_bytes) {
        throw base::Error{
            base::ErrorCode::refused, "set up a message channel",
            fmt::format("peer {}", link().peer_name()),
            fmt::format("it offers a ring of {} bytes, and a copy of at most {} is allowed here",
                        peer.ring_bytes, options.max_peer_ring_bytes),
            "make its ring smaller (ring_bytes), or allow more (max_peer_ring_bytes)"};
    }
    if (options.ring_bytes > peer.max_peer_ring_bytes) {
        throw base::Error{base::ErrorCode::refused, "set up a message channel",
                          fmt::format("peer {}", link().peer_name()),
                          fmt::format("it takes a ring of at most {} bytes, and this side's has {}",
                                      peer.max_peer_ring_bytes, options.ring_bytes),
                          "make this side's ring smaller (ring_bytes), or let the peer allow more "
                          "(max_peer_ring_bytes)"};
    }
    if (peer.sends_by != static_cast<std::uint32_t>(ways.receives) ||
        peer.receives_by != static_cast<std::uint32_t>(ways.sends) ||
        (ways.sends == Transfer::send &&
         (!valid_ring(peer.slot_bytes) || peer.slot_bytes > peer.ring_bytes))) {
        throw base::Error{base::ErrorCode::protocol, "set up a message channel",
                          fmt::format("peer {}", link().peer_name()),
                          "it goes by other ways than were asked for, or by slots that cannot be",
                          "use the same build of millrace on both sides"};
    }
    peer_ring = {peer.ring_address, peer.ring_rkey};
    carrier = ring::PeerMemory::behind(link(), options.carrier, {});
    if (ways.sends == Transfer::write) {
        peer_memory = carrier.map(peer_ring, peer.ring_bytes);
    } else {
        peer_slot = peer.slot_bytes;
    }
    stores = peer_memory != nullptr;
    if (!stores) quiet_looks = looks_between_polls;
    std::byte* laid_at = peer_memory.get();
    if (!stores) {
        send_ring = link().allocate(peer.ring_bytes, verbs::Access::none);
        const ibv_sge whole = send_ring.slice(0, peer.ring_bytes);
        send_ring_address = whole.addr;
        send_ring_key = whole.lkey;
        route.set(whole.lkey, peer.ring_rkey);
        laid_at = send_ring.data();
    }
    writer = FrameWriter{{laid_at, peer.ring_bytes}, secret, first_position};
    reader = FrameReader{{memory.data(), options.ring_bytes}, peer.secret, peer.first_position};
    published = peer.first_position;
    if (incoming.has_value()) place_next();

    peer_page = {peer.control_address, peer.control_rkey};
    const bool far_fences = peer.far_fences != 0 && leaves_fences();
    fences_here = !far_fences;
    sleeper->connect_to(peer_page + offsetof(ControlPage, wake_up), far_fences);
    bell = end::Bell{window(), page().wake_up, peer_page, far_fences};
    page().wake_up.progress.store(Progress::pack(writer.position(), reader.position()));
    sent_half = Progress::pack(writer.position(), 0);
    // The peer READs `consumed` only when it has filled our ring, so after this exchange: it could
    // not know our position before, and a zero is no whole position.
    page().consumed.store(ring::PositionWord::pack(reader.position()));
    credit = end::CounterPush{window(), peer_page + offsetof(ControlPage, credit),
                              ring::PositionWord::pack(peer.first_position)};
    credit.store_to(carrier.word(peer_page + offsetof(ControlPage, credit)));
    credited = told = peer.first_position;
    credit_due = std::max<std::uint64_t>(options.ring_bytes / 4, frame_alignment);
    credit_step = incoming.has_value() ? 0 : credit_due;
    has_ring = !incoming.has_value();
    pull = end::CounterPull{
        window(), peer_page + offsetof(ControlPage, consumed),
        memory.slice(receive_bytes + offsetof(ControlPage, landing), sizeof(std::uint64_t))};
    pull.load_from(carrier.word(peer_page + offsetof(ControlPage, consumed)));
}

namespace {
[[nodiscard]] ChannelOptions completed(ChannelOptions options) {
    check(options);
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    return options;
}
}  // namespace

Listener Listener::listen(const connect::Address& address, ChannelOptions options) {
    options = completed(std::move(options));
    connect::Listener listener =
        connect::Listener::listen(address, link_options(options, channel_service));
    return Listener{std::move(listener), std::move(options)};
}

Channel Listener::accept(const base::Deadline& deadline) {
    return connect::accept_until_set_up(
        listener_, deadline, [&](connect::Link link, const base::Deadline& patience) {
            return Channel{set_up_accepted(std::move(link), options_, patience)};
        });
}

std::optional<Channel> Listener::try_accept() {
    return connect::try_accept_set_up(listener_, [&](connect::Link link) {
        // The peer's word is here already, so nothing is waited for.
        return Channel{set_up_accepted(std::move(link), options_, base::Deadline::now())};
    });
}

Connector::Connector(const connect::Address& address, ChannelOptions options)
    : options_{completed(std::move(options))},
      connector_{address, link_options(options_, channel_service)} {}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

/// This side's word is said with the link.
void Connector::begin(connect::Link link) {
    core_ = std::make_unique<Channel::Core>(std::move(link), options_);
    const Facts mine = core_->facts();
    core_->link().say(connect::bytes_of(mine));
}

Channel Connector::finish(std::span<const std::byte> theirs) {
    core_->meet(connect::facts_in<Facts>(theirs, setting_up_a_channel, core_->link().peer_name()));
    return Channel{std::move(core_)};
}

std::optional<Channel> Connector::try_connect() {
    if (core_ == nullptr) {
        std::optional<connect::Link> link = connector_.try_connect();
        if (!link.has_value()) return std::nullopt;
        begin(std::move(*link));
    }
    const auto theirs = core_->link().heard();
    if (!theirs.has_value()) return std::nullopt;
    return finish(*theirs);
}

Channel Connector::wait(const base::Deadline& deadline) {
    if (core_ == nullptr) begin(connector_.wait(deadline));
    return finish(core_->link().hear(deadline));
}

Channel connect(const connect::Address& address, ChannelOptions options,
                const base::Deadline& deadline) {
    return Connector{address, std::move(options)}.wait(deadline);
}

}  // namespace millrace::message
