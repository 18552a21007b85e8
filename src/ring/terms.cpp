// The agreement of a ring's two ends, see the header.
#include "millrace/ring/terms.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/first_position.hpp"
#include "millrace/ring/detail/space.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::ring {
namespace {

/// Of an item type's name, as far as it is shown.
constexpr std::size_t shown_name = 160;

// On the socket, in the byte order that the link has agreed upon.
struct Proposal {
    std::uint64_t capacity;  // 0: not asked for
    std::uint64_t initial;
    std::uint64_t secret;
    std::uint32_t item_size;
    std::uint32_t item_alignment;
    std::uint8_t role;
    std::uint8_t data;
    std::uint8_t transfer;
    std::uint8_t space;
    std::uint8_t batching;
    std::uint8_t mover;
    std::uint8_t in_order;
    std::uint8_t far_fences;
    std::uint32_t receive_pool;
    std::uint32_t batch;  // 0: not asked for
    std::uint32_t own_transfer_queue;
    std::uint32_t label;
    std::uint64_t crew;
    std::uint32_t crew_size;
    std::uint32_t zero;
    std::uint64_t item_name_hash;
    char item_name[shown_name];  // zeros behind it
};
static_assert(sizeof(Proposal) == 80 + shown_name && std::is_trivially_copyable_v<Proposal>);

// Behind a consumer's proposal, where it asks for a filter.
struct FilterMessage {
    std::uint64_t name_hash;
    std::uint32_t size;  // of the object
    std::uint32_t alignment;
    std::uint32_t stops;
    std::uint32_t zero;
    char name[shown_name];  // zeros behind it
    std::byte object[most_filter_bytes];
};
static_assert(sizeof(FilterMessage) == 24 + shown_name + most_filter_bytes);

/// What an end proposes.
struct Proposed {
    Proposal proposal;
    std::optional<FilterMessage> filter{};
};

struct PlacesMessage {
    std::uint64_t address[5];
    std::uint32_t rkey[5];
    std::uint32_t zero;
};
static_assert(sizeof(PlacesMessage) == 64);

template <class Message>
Message decode(const connect::Link& link, std::span<const std::byte> answer) {
    Message theirs;
    if (answer.size() != sizeof theirs) {
        throw base::Error{
            base::ErrorCode::protocol, "agree on a ring", link.peer_name(),
            fmt::format("it sent {} bytes where {} were expected", answer.size(), sizeof theirs),
            "use the same version of the library at both ends"};
    }
    std::memcpy(&theirs, answer.data(), sizeof theirs);
    return theirs;
}

std::vector<std::byte> encode(const Proposed& mine) {
    const auto& [proposal, filter] = mine;
    std::vector<std::byte> said(sizeof proposal + (filter ? sizeof *filter : 0));
    std::memcpy(said.data(), &proposal, sizeof proposal);
    if (filter) std::memcpy(said.data() + sizeof proposal, &*filter, sizeof *filter);
    return said;
}

Proposed decode_proposed(const connect::Link& link, std::span<const std::byte> heard) {
    if (heard.size() != sizeof(Proposal) + sizeof(FilterMessage)) {
        return {decode<Proposal>(link, heard)};
    }
    return {decode<Proposal>(link, heard.first(sizeof(Proposal))),
            decode<FilterMessage>(link, heard.subspan(sizeof(Proposal)))};
}

std::string describe(const Proposal& p) {
    return to_string(Design{static_cast<DataFlow>(p.data),
                            static_cast<TransferNotification>(p.transfer),
                            static_cast<SpaceNotification>(p.space),
                            static_cast<Batching>(p.batching), static_cast<Mover>(p.mover)});
}
/// Of a type. Another end's: whatever it likes to say.
std::string describe_name(const char (&said)[shown_name]) {
    std::string name{said, strnlen(said, shown_name)};
    std::replace_if(
        name.begin(), name.end(), [](char letter) { return letter < ' ' || letter > '~'; }, '?');
    if (name.size() == shown_name) name += "...";
    return name;
}
std::string describe_items(const Proposal& p) {
    if (p.item_size == 0) return "framed bytes";
    const std::string name = describe_name(p.item_name);
    return fmt::format("items {}of {} bytes aligned to {}",
                       name.empty() ? std::string{} : fmt::format("'{}' ", name), p.item_size,
                       p.item_alignment);
}

void put_items(Proposal& proposal, const ItemFacts& item) noexcept {
    proposal.item_size = static_cast<std::uint32_t>(item.size);
    proposal.item_alignment = static_cast<std::uint32_t>(item.alignment);
    proposal.item_name_hash = base::name_hash(item.name);
    std::memset(proposal.item_name, 0, shown_name);
    item.name.copy(proposal.item_name, shown_name);
}

FilterMessage message_of(const FilterAsked& filter) noexcept {
    FilterMessage message{};
    message.name_hash = filter.name_hash;
    message.size = static_cast<std::uint32_t>(filter.object.size());
    message.alignment = filter.alignment;
    message.stops = filter.stops ? 1 : 0;
    filter.name.copy(message.name, shown_name);
    std::memcpy(message.object, filter.object.data(), filter.object.size());
    return message;
}

bool have_one_item_type(const Proposal& one, const Proposal& other) noexcept {
    return one.item_size == other.item_size && one.item_alignment == other.item_alignment &&
           one.item_name_hash == other.item_name_hash &&
           std::memcmp(one.item_name, other.item_name, shown_name) == 0;
}

[[noreturn]] void mismatch(connect::Link& link, std::string cause, std::string remedy) {
    throw base::Error{base::ErrorCode::refused, "agree on a ring", link.peer_name(),
                      std::move(cause), std::move(remedy)};
}

/// What a producer's items become by the filter that its consumer asks for. Refuses what cannot be,
/// which the consumer alone does not see.
ItemFacts filtered(connect::Link& link, const ItemFacts& item, const Proposed& theirs) {
    constexpr const char* attempt = "agree on a ring";
    const FilterMessage& filter = *theirs.filter;
    const std::string name = describe_name(filter.name);
    if (filter.size > most_filter_bytes || filter.stops > 1) {
        throw base::Error{base::ErrorCode::protocol, attempt, link.peer_name(),
                          fmt::format("it asks for a filter of {} bytes", filter.size),
                          "use the same version of the library at both ends"};
    }
    if (item.offer == nullptr) {
        link.refuse(
            attempt,
            fmt::format("the other end asks for the filter '{}', and this end has none", name),
            "give the producer items of flow::Filtered, with that filter, or ask for none");
    }
    ItemFacts made = item;
    const auto refusal = item.offer->take({.name = {filter.name, strnlen(filter.name, shown_name)},
                                           .name_hash = filter.name_hash,
                                           .alignment = filter.alignment,
                                           .stops = filter.stops != 0,
                                           .object = std::span{filter.object}.first(filter.size)},
                                          made);
    if (refusal.has_value()) link.refuse(attempt, refusal->cause, refusal->remedy);
    Proposal become{};
    put_items(become, made);
    if (have_one_item_type(become, theirs.proposal)) return made;
    link.refuse(attempt,
                fmt::format("the filter '{}' makes {}, the other end has {}", name,
                            describe_items(become), describe_items(theirs.proposal)),
                "use the item type that the filter makes at the consumer");
}

/// Frames over push2: a power of two, so that a ring is some 64 transfers.
std::uint64_t chunk_of_frames(std::uint64_t ring_bytes) {
    return std::max<std::uint64_t>(std::bit_ceil(ring_bytes) / 64, 32);
}

/// True: a SEND carries a batch of items. A mover sends whatever it finds, and so one by one.
bool is_sent_in_batches(Design design) {
    return design.data == DataFlow::push2 && design.batching != Batching::none &&
           design.mover == Mover::passive;
}

Places places_of(const PlacesMessage& message) noexcept {
    return {.ring = {message.address[0], message.rkey[0]},
            .page = {message.address[1], message.rkey[1]},
            .credit = {message.address[2], message.rkey[2]},
            .transfer = {message.address[3], message.rkey[3]},
            .taken = {message.address[4], message.rkey[4]}};
}

/// `batch`: 0 if nobody asked for a size.
void agree_on_batch(Terms& terms, Design design, std::uint32_t batch, std::uint64_t capacity) {
    if (design.batching == Batching::none) return;
    const bool fixed = design.batching == Batching::fixed;
    if (batch == 0) {
        batch = fixed ? RingOptions::default_fixed_batch : RingOptions::default_dynamic_batch;
        if (!terms.framed()) batch = std::min(batch, static_cast<std::uint32_t>(capacity));
    }
    terms.batch = batch;
    if (!terms.framed()) {
        terms.batch_bytes = batch * terms.slot_bytes;
        // What is sent at once is received at once, and the ring is whole batches.
        if (is_sent_in_batches(design)) terms.ring_bytes -= terms.ring_bytes % terms.batch_bytes;
    } else if (!fixed) {
        terms.batch_bytes = terms.ring_bytes / 16;
    }
}

}  // namespace

std::uint64_t Terms::max_frame() const noexcept {
    const std::uint64_t unit = std::max<std::uint64_t>(chunk_bytes, 8);
    return framed() ? (ring_bytes / 2 & ~(unit - 1)) - frame_overhead : 0;
}

std::vector<std::byte> propose(connect::Link& link, Role role, Design design,
                               const RingOptions& options, const ItemFacts& item) {
    check(options, item, design);
    Proposal mine{.capacity = options.capacity.value_or(0),
                  .initial = detail::first_position(0),
                  .secret = base::random_bits(),
                  .item_size = 0,
                  .item_alignment = 0,
                  .role = static_cast<std::uint8_t>(role),
                  .data = static_cast<std::uint8_t>(design.data),
                  .transfer = static_cast<std::uint8_t>(design.transfer),
                  .space = static_cast<std::uint8_t>(design.space),
                  .batching = static_cast<std::uint8_t>(design.batching),
                  .mover = static_cast<std::uint8_t>(design.mover),
                  .in_order = static_cast<std::uint8_t>(link.writes_in_order() ? 1 : 0),
                  .far_fences = static_cast<std::uint8_t>(end::can_make_far_fences(link) ? 1 : 0),
                  .receive_pool = options.receive_pool,
                  .batch = options.batch.value_or(0),
                  .own_transfer_queue = options.own_transfer_queue ? 1U : 0U,
                  .label = options.label,
                  .crew = options.crew.number,
                  .crew_size = options.crew.size,
                  .zero = 0,
                  .item_name_hash = 0,
                  .item_name = {}};
    put_items(mine, item);
    Proposed proposed{mine};
    if (item.filter != nullptr) proposed.filter = message_of(*item.filter);
    std::vector<std::byte> said = encode(proposed);
    link.say(said);
    return said;
}

Terms agree(connect::Link& link, Role role, Design design, const RingOptions& options,
            const ItemFacts& its_item, const base::Deadline& deadline,
            const std::optional<Proposals>& proposals) {
    std::optional<Proposals> swapped;
    if (!proposals.has_value()) {
        swapped.emplace();
        swapped->mine = propose(link, role, design, options, its_item);
        swapped->theirs = link.hear(deadline);
    }
    const Proposals& both = proposals.has_value() ? *proposals : *swapped;
    const Proposal mine = decode_proposed(link, both.mine).proposal;
    const Proposed answer = decode_proposed(link, both.theirs);
    const Proposal& theirs = answer.proposal;
    ItemFacts item = its_item;
    if (mine.role == theirs.role) {
        const char* const name = role == Role::producer ? "producer" : "consumer";
        mismatch(link, fmt::format("both ends are a {}", name),
                 fmt::format("connect a {} with a {}", "producer", "consumer"));
    }
    if (describe(mine) != describe(theirs)) {
        mismatch(link,
                 fmt::format("this end runs {}, the other end runs {}", describe(mine),
                             describe(theirs)),
                 "choose the same design at both ends");
    }
    if (role == Role::producer && answer.filter.has_value()) {
        item = filtered(link, item, answer);
    } else if (item.filter == nullptr && !have_one_item_type(mine, theirs)) {
        mismatch(
            link,
            fmt::format("this end has {}, the other end has {}", describe_items(mine),
                        describe_items(theirs)),
            "use the same item type at both ends; if it is the same and only its name differs, "
            "give it one (flow::ItemName)");
    }
    if (theirs.initial % 8 != 0) {
        throw base::Error{base::ErrorCode::protocol, "agree on a ring", link.peer_name(),
                          fmt::format("it begins at position {}, no multiple of 8", theirs.initial),
                          "use the same version of the library at both ends"};
    }
    if (options.peer_labels != 0 && theirs.label >= options.peer_labels) {
        const std::string cause =
            fmt::format("the other end's label is {}, and this end takes those below {}",
                        theirs.label, options.peer_labels);
        link.refuse("agree on a ring", cause, "correct RingOptions::label of the other end");
    }
    const Proposal& producer = role == Role::producer ? mine : theirs;

    Terms terms;
    terms.is_filtered = role == Role::producer ? answer.filter.has_value() : item.filter != nullptr;
    terms.peer_label = theirs.label;
    terms.peer_crew = {.number = theirs.crew, .size = theirs.crew_size};
    terms.slot_bytes = slot_bytes(item, design);
    std::uint64_t capacity = std::min(mine.capacity, theirs.capacity);
    if (capacity == 0) capacity = std::max(mine.capacity, theirs.capacity);
    if (capacity == 0) {
        capacity = terms.framed()
                       ? RingOptions::default_bytes
                       : std::max<std::uint64_t>(RingOptions::default_bytes / terms.slot_bytes, 1);
    }
    // What the other end asks for is checked as what we ask for.
    RingOptions agreed = options;
    agreed.capacity = capacity;
    std::uint32_t batch = std::min(mine.batch, theirs.batch);
    if (batch == 0) batch = std::max(mine.batch, theirs.batch);
    if (batch != 0) agreed.batch = batch;
    try {
        check(agreed, item, design);
    } catch (const base::Error& error) {
        mismatch(link, fmt::format("it asks for {}: {}", error.object(), error.cause()),
                 error.remedy());
    }
    terms.ring_bytes = terms.framed() ? round_up(capacity, 8) : capacity * terms.slot_bytes;
    agree_on_batch(terms, design, batch, capacity);
    terms.receive_pool = role == Role::consumer ? mine.receive_pool : theirs.receive_pool;
    if (terms.receive_pool == 0 || terms.receive_pool > RingOptions::max_pool) {
        throw base::Error{base::ErrorCode::protocol, "agree on a ring", link.peer_name(),
                          fmt::format("it names a pool of {} receives", terms.receive_pool),
                          "use the same version of the library at both ends"};
    }
    terms.window_bytes = terms.ring_bytes;
    if (design.data == DataFlow::push2) {
        terms.chunk_bytes = terms.framed()               ? chunk_of_frames(capacity)
                            : is_sent_in_batches(design) ? terms.batch_bytes
                                                         : terms.slot_bytes;
        if (terms.framed()) terms.ring_bytes = round_up(capacity, 2 * terms.chunk_bytes);
        const std::uint64_t chunks = terms.ring_bytes / terms.chunk_bytes;
        if (terms.receive_pool > chunks && terms.receive_pool != RingOptions::default_pool) {
            mismatch(link,
                     fmt::format("the consumer's pool has {} receives, the ring room for {}",
                                 terms.receive_pool, chunks),
                     "choose a smaller pool or a larger ring");
        }
        terms.receive_pool =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(terms.receive_pool, chunks));
        terms.window_bytes = terms.receive_pool * terms.chunk_bytes;
        if (terms.framed() && terms.window_bytes != terms.ring_bytes) {
            mismatch(link,
                     fmt::format("frames over push2 need a receive for each of the ring's {} "
                                 "chunks, and the consumer's pool has {}",
                                 chunks, terms.receive_pool),
                     fmt::format("give the consumer a pool of {}", chunks));
        }
    }
    terms.own_transfer_queue = mine.own_transfer_queue != 0 || theirs.own_transfer_queue != 0;
    if (terms.own_transfer_queue && design.transfer != TransferNotification::push) {
        throw base::Error{base::ErrorCode::protocol, "agree on a ring", link.peer_name(),
                          "it asks for a queue pair of a notification that is not pushed",
                          "use the same version of the library at both ends"};
    }
    terms.initial = producer.initial;
    terms.secret = producer.secret;
    terms.far_fences = mine.far_fences != 0 && theirs.far_fences != 0;
    terms.in_order = mine.in_order != 0 && theirs.in_order != 0;
    if (!has_marks(design) || design.data == DataFlow::pull) {
        terms.in_order = true;  // positions are told behind the data, or completions tell
    } else if (design.data == DataFlow::push2 && !terms.in_order) {
        throw base::Error{base::ErrorCode::unsupported, "agree on a ring", link.peer_name(),
                          "watermarks over push2 need a device that keeps the order of a "
                          "transfer's bytes, and this one does not promise it",
                          "choose another transfer notification, such as event"};
    }
    // The consumer's mover pulls by one of its own, too: a counter, or the data.
    const bool moves_data =
        design.data == DataFlow::pull && design.space != SpaceNotification::push2;
    terms.second_queue =
        terms.own_transfer_queue || (design.mover == Mover::active &&
                                     (design.transfer == TransferNotification::pull || moves_data));
    return terms;
}

void say_places(connect::Link& link, const Places& mine) {
    const PlacesMessage message{
        .address = {mine.ring.address, mine.page.address, mine.credit.address,
                    mine.transfer.address, mine.taken.address},
        .rkey = {mine.ring.rkey, mine.page.rkey, mine.credit.rkey, mine.transfer.rkey,
                 mine.taken.rkey},
        .zero = 0};
    link.say(std::as_bytes(std::span{&message, 1}));
}

Places wait_for_places(connect::Link& link, const base::Deadline& deadline) {
    return places_of(decode<PlacesMessage>(link, link.hear(deadline)));
}

std::optional<Places> hear_places(connect::Link& link) {
    const std::optional<std::vector<std::byte>> answer = link.heard();
    if (!answer.has_value()) return std::nullopt;
    return places_of(decode<PlacesMessage>(link, *answer));
}

connect::LinkOptions link_options(std::string_view service, std::uint32_t receive_pool) {
    connect::LinkOptions options;
    options.service = service;
    options.service_version = 8;
    options.max_send_requests = 128;
    // Credit SENDs at the producer, data or immediates at the consumer; whoever accepts does not
    // know yet for which.
    options.max_receive_requests = std::max<std::uint32_t>(
        receive_pool, detail::SpaceView<SpaceNotification::push2>::receives);
    options.max_send_slices = 3;  // a batch around the mark that is held back
    // An item of 64 bytes in its frame. As much of a send queue as three slices take.
    options.max_inline = 80;
    return options;
}

}  // namespace millrace::ring
