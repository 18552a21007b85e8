// How both ends of latest values come to be: what they may ask for, their memory, and what they
// tell each other.
#include <algorithm>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "latest_state.hpp"
#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/far_fence.hpp"

namespace millrace::flow::detail {

using base::Deadline;

/// What each end tells the other. Addresses are the sender's own.
struct LatestFacts {
    std::uint64_t role = 0;
    std::uint64_t cells = 0;  ///< 0, of a writer: as many as the reader has
    std::uint64_t size = 0;
    std::uint64_t alignment = 0;
    std::uint64_t name = 0;  ///< a hash of what a value is called
    std::uint64_t memory = 0;
    std::uint64_t page = 0;
    std::uint32_t memory_rkey = 0;
    std::uint32_t page_rkey = 0;
    std::uint64_t far_fences = 0;
};
static_assert(sizeof(LatestFacts) == 72);

namespace {

constexpr const char* attempt = "set up latest values";
constexpr std::uint32_t most_cells = 1U << 20;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

connect::LinkOptions link_options_of(const LatestOptions& options) {
    return {.service = "latest values",
            .endpoint = options.endpoint,
            .max_send_requests = 128,
            .max_receive_requests = 16,
            .max_send_slices = 1,
            .max_inline = 128,
            .admission = options.admission};
}

void check(LatestEnd::Role role, const ItemFacts& item, const LatestOptions& options) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, attempt, std::move(what),
                          std::move(why), std::move(remedy)};
    };
    if (role == LatestEnd::Role::reader && options.cells == 0) {
        refuse("no cells", "a reader says how many values there are", "set LatestOptions::cells");
    }
    if (options.cells > most_cells ||
        options.cells * LatestEnd::State::places * item.size > most_bytes) {
        refuse(fmt::format("{} cells of {} bytes", options.cells, item.size),
               fmt::format("there are at most {}, and {} bytes with their four places", most_cells,
                           most_bytes),
               "use fewer, or several readers");
    }
}

/// What an end registers before it knows what the peer wants: the reader all of its cells, the
/// writer nothing, as it learns how many there are first.
std::uint64_t place_of(std::uint64_t size) noexcept {
    return ring::round_up(std::max<std::uint64_t>(size, 1), 8);
}

/// With the endpoint whose domain what is registered is of.
[[nodiscard]] LatestOptions of_domain(const connect::Link& link, LatestOptions chosen) {
    chosen.endpoint = link.shared_endpoint();
    return chosen;
}

}  // namespace

LatestEnd::State::State(Role its_role, const ItemFacts& item, connect::Link connected,
                        LatestOptions chosen, const Deadline& deadline)
    : role{its_role},
      options{of_domain(connected, std::move(chosen))},
      size{item.size},
      alignment{item.alignment},
      name{base::name_hash(item.name)},
      cells{options.cells},
      place_bytes{place_of(item.size)},
      memory{connected.allocate(
          its_role == Role::reader ? all_bytes() : most_staged * place_bytes,
          its_role == Role::reader ? verbs::Access::remote_write : verbs::Access::none)},
      page_memory{connected.allocate(sizeof(end::WakeUpPage),
                                     verbs::Access::remote_write | verbs::Access::remote_read)},
      end{std::move(connected)} {
    connect::Link& link = end.link();
    new (page_memory.data()) end::WakeUpPage{};
    writing.max_inline = link.queue_pair().capacity().max_inline_data;
    if (role == Role::reader) {
        for (std::uint32_t cell = 0; cell != cells; ++cell) {
            ring::store_word(memory.data() + cell * sizeof(std::uint64_t), word_of(0));
        }
        reading.versions.assign(cells, 0);
    }
    // Before the peer can ring.
    reading.sleeper.emplace(*this);
    const LatestFacts mine{.role = static_cast<std::uint64_t>(role),
                           .cells = cells,
                           .size = size,
                           .alignment = alignment,
                           .name = name,
                           .memory = memory.remote().address,
                           .page = page_memory.remote().address,
                           .memory_rkey = memory.remote().rkey,
                           .page_rkey = page_memory.remote().rkey,
                           .far_fences = end::can_make_far_fences(link) ? 1U : 0U};
    const auto theirs = link.exchange(connect::bytes_of(mine), deadline);
    meet(connect::facts_in<LatestFacts>(theirs, attempt, link.peer_name()));
}

void LatestEnd::State::meet(const LatestFacts& peer) {
    connect::Link& link = end.link();
    const auto refuse = [&link](std::string cause, std::string remedy) {
        throw base::Error{base::ErrorCode::refused, attempt, link.peer_name(), std::move(cause),
                          std::move(remedy)};
    };
    if (peer.role == static_cast<std::uint64_t>(role)) {
        refuse("both ends are of one kind", "connect a LatestWriter with a LatestReader");
    }
    if (peer.size != size || peer.alignment != alignment || peer.name != name) {
        refuse(fmt::format("this end has values of {} bytes aligned to {}, the other end of {} "
                           "aligned to {}{}",
                           size, alignment, peer.size, peer.alignment,
                           peer.size == size && peer.alignment == alignment
                               ? ", which are called otherwise"
                               : ""),
               "use the same type at both ends; if it is the same and only its name differs, give "
               "it one (flow::ItemName)");
    }
    if (peer.cells > most_cells || (role == Role::writer && peer.cells == 0)) {
        throw base::Error{base::ErrorCode::protocol, attempt, link.peer_name(),
                          fmt::format("it says that it has {} cells", peer.cells),
                          "use the same version of the library at both ends"};
    }
    if (cells != 0 && peer.cells != 0 && cells != peer.cells) {
        refuse(fmt::format("this end has {} cells, the other end {}", cells, peer.cells),
               "choose the same number at both ends, or leave the writer's 0");
    }
    const bool far_fences = peer.far_fences != 0 && end::can_make_far_fences(link);
    const verbs::RemoteAddress peer_page{peer.page, peer.page_rkey};
    if (role == Role::reader) {
        reading.sleeper->connect_to(peer_page, far_fences);
        end.sleep_by(*reading.sleeper);
        return;
    }
    cells = static_cast<std::uint32_t>(peer.cells);
    writing.versions.assign(cells, 0);
    writing.memory = {peer.memory, peer.memory_rkey};
    writing.carrier = ring::PeerMemory::behind(link, options.carrier, {});
    writing.cells = writing.carrier.map(writing.memory, all_bytes());
    writing.bell = end::Bell{end.window(), page(), peer_page, far_fences};
}

LatestEnd LatestEnd::connect(Role role, const ItemFacts& item, const connect::Address& address,
                             LatestOptions options, const Deadline& deadline) {
    check(role, item, options);
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    connect::Link link = connect::connect(address, link_options_of(options), deadline);
    return LatestEnd{
        std::make_unique<State>(role, item, std::move(link), std::move(options), deadline)};
}

LatestEnd LatestEnd::listen(Role role, const ItemFacts& item, const connect::Address& address,
                            LatestOptions options, const Deadline& deadline) {
    check(role, item, options);
    if (options.endpoint == nullptr) options.endpoint = connect::Endpoint::shared();
    connect::Listener listener = connect::Listener::listen(address, link_options_of(options));
    detail::tell_chosen_port(address, listener.address());
    return LatestEnd{connect::accept_until_set_up(
        listener, deadline, [&](connect::Link link, const Deadline& patience) {
            return std::make_unique<State>(role, item, std::move(link), options, patience);
        })};
}

}  // namespace millrace::flow::detail
