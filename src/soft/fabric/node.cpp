#include "fabric/node.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "fabric/fabric_names.hpp"
#include "fabric/peer_node.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "system/copy_rights.hpp"
#include "system/fences.hpp"
#include "system/liveness.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view join_attempt = "join the soft device's fabric";
/// Connections that nobody has served yet; the kernel caps it at net.core.somaxconn.
constexpr int backlog = 4096;

/// The nodes of this process, for `join` and for fork. Never destroyed: fork may come after main.
struct Nodes {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<Node>, std::less<>> by_fabric;
    std::vector<std::shared_ptr<Node>> held_over_fork;
};

Nodes& nodes() {
    static Nodes& all = *new Nodes;
    return all;
}

void before_fork() {
    Nodes& all = nodes();
    all.mutex.lock();
    for (auto& [fabric, known] : all.by_fabric) {
        if (auto node = known.lock()) {
            node->lock_for_fork();
            all.held_over_fork.push_back(std::move(node));
        }
    }
}

void after_fork(bool child) {
    Nodes& all = nodes();
    for (auto& node : all.held_over_fork) {
        if (child) node->abandon_in_child();
        node->unlock_after_fork();
    }
    if (child) all.by_fabric.clear();
    // A node whose last other owner has let go meanwhile ends here, after the lock.
    const auto held = std::exchange(all.held_over_fork, {});
    all.mutex.unlock();
}

}  // namespace

/// Binds the first free number: the kernel sees to it that nobody else gets it while we live.
Node::Name Node::take_number(std::string_view fabric, std::optional<std::uint32_t> slot) {
    const std::string object = fmt::format("'{}'", fabric);
    Descriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!socket) base::throw_errno(errno, std::string{join_attempt}, object);
    const std::uint32_t step = slot ? wire_slots : 1;
    for (std::uint32_t number = slot.value_or(1); number <= max_node_number; number += step) {
        if (number % wire_slots == 0) continue;  // the wire's, which may be turned on later
        const NodeAddress address{::geteuid(), fabric, number};
        if (::bind(socket.get(), address.get(), address.length) == 0) {
            return {std::move(socket), number};
        }
        if (errno != EADDRINUSE) base::throw_errno(errno, std::string{join_attempt}, object);
    }
    throw base::Error{base::ErrorCode::resource_exhausted, std::string{join_attempt}, object,
                      fmt::format("all {} node numbers are taken", max_node_number),
                      "end processes that use it, or choose another fabric with MILLRACE_FABRIC"};
}

Node::Node(std::string_view fabric, bool membarrier, std::optional<std::uint32_t> slot)
    : fabric_{fabric},
      name_{take_number(fabric, slot)},
      memory_{std::make_shared<NodeMemory>(fabric, name_.number, membarrier)},
      usable_{std::make_shared<std::atomic<bool>>(true)},
      regions_{std::make_shared<RegionTable>(memory_->regions(), usable_)},
      liveness_{std::make_shared<Liveness>()},
      self_{own_node_as_peer(name_.number, memory_, regions_, usable_)} {
    // From here on peers find us, and everything is there.
    if (::listen(name_.socket.get(), backlog) != 0) {
        base::throw_errno(errno, std::string{join_attempt}, fmt::format("'{}'", fabric));
    }
}

Node::~Node() {
    if (!usable()) return;  // a child made by fork: the node is its parent's
    memory_->end();
    usable_->store(false, std::memory_order_release);
}

std::optional<Block> Node::allocate_block(std::size_t size, BlockUse use) {
    if (!usable()) {
        errno = ENODEV;
        return std::nullopt;
    }
    drop_connections();
    return memory_->allocate(size, use);
}

std::shared_ptr<PeerNode> Node::peer(std::uint32_t number, bool* is_free) {
    const base::Uncancelled held;
    if (!usable()) return refused(ENODEV);
    if (number == name_.number) return self_;
    if (number == 0 || number > max_node_number) return nullptr;
    drop_connections();
    const std::scoped_lock lock{peers_mutex_};
    std::weak_ptr<PeerNode>& known = peers_[number];
    if (auto peer = known.lock(); peer != nullptr && peer->still_there()) return peer;
    auto peer = connect_to_node(fabric_, number, liveness_, is_free);
    known = peer;
    return peer;
}

std::vector<std::uint32_t> Node::node_numbers() const {
    const base::Uncancelled held;
    std::vector<std::uint32_t> numbers;
    for (const NodeName& name : names_in_use()) {
        if (name.user == ::geteuid() && name.fabric == fabric_) numbers.push_back(name.node);
    }
    return numbers;
}

bool Node::check_liveness() noexcept { return usable() && liveness_->check(); }
int Node::liveness_descriptor() const noexcept { return liveness_->descriptor(); }

void Node::lock_for_fork() {
    peers_mutex_.lock();
    liveness_->mutex().lock();
    regions_->mutex().lock();
    memory_->mutex().lock();
}

void Node::unlock_after_fork() {
    memory_->mutex().unlock();
    regions_->mutex().unlock();
    liveness_->mutex().unlock();
    peers_mutex_.unlock();
}

void Node::abandon_in_child() {
    usable_->store(false, std::memory_order_release);
    liveness_->abandon();
    name_.socket.close();
    memory_->abandon();
    for (auto& [number, known] : peers_) {
        if (auto peer = known.lock()) peer->abandon();
    }
}

/// Nobody is ever answered here. But connections stay in the queue until somebody takes them out,
/// also those of peers that have long closed them, and it is not endless. (Where it is full, peers
/// find us otherwise: peer_node.cpp.)
void Node::drop_connections() noexcept {
    for (int taken = 0; taken < backlog; ++taken) {
        const Descriptor connection{
            ::accept4(name_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!connection) break;
    }
}

std::shared_ptr<Node> Node::join(std::string_view fabric, std::optional<std::uint32_t> slot) {
    check_fabric_name(fabric);
    static const int handlers = ::pthread_atfork(
        &before_fork, [] { after_fork(false); }, [] { after_fork(true); });
    if (handlers != 0) base::throw_errno(handlers, std::string{join_attempt}, "this process");

    Nodes& all = nodes();
    const std::scoped_lock lock{all.mutex};
    std::weak_ptr<Node>& known = all.by_fabric[std::string{fabric}];
    if (auto node = known.lock()) return node;
    let_others_copy_if_asked();
    auto node = std::make_shared<Node>(fabric, register_for_membarrier(), slot);
    known = node;
    return node;
}

FencedKey::FencedKey(const Node& node, std::uint32_t key) noexcept
    : node_{node}, index_{index_of_key(key)}, window_{node.regions().is_window(key)} {}

bool FencedKey::is(std::uint32_t named) const noexcept {
    if (named == 0) return false;
    if (index_of_key(named) == index_) return true;
    // A window's key says nothing of the region that it shows.
    return !window_ && node_.regions().is_window(named);
}

bool FencedKey::in_pair(std::uint64_t pair, unsigned mine) const noexcept {
    const auto sender = static_cast<std::uint32_t>((pair & ~names_more) >> 32);
    const auto receiver = static_cast<std::uint32_t>(pair);
    return ((mine & named_by_sender) != 0 && is(sender)) ||
           ((mine & named_by_receiver) != 0 && is(receiver));
}

bool FencedKey::may_be_in(const Hazard& hazard, unsigned mine) const noexcept {
    const std::uint64_t first = hazard.named[0].load(std::memory_order_acquire);
    if (first == names_any || in_pair(first, mine)) return true;
    if ((first & names_more) == 0) return false;
    for (std::size_t i = 1; i < named_pairs; ++i) {
        if (in_pair(hazard.named[i].load(std::memory_order_acquire), mine)) return true;
    }
    return false;
}

}  // namespace millrace::soft
