// This process's node: takes a number by binding its socket, makes its memory, knows its peers.
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "copy_rights.hpp"
#include "fabric.hpp"
#include "fabric_names.hpp"
#include "fences.hpp"
#include "liveness.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/uncancelled.hpp"
#include "node_memory.hpp"
#include "peer_node.hpp"
#include "region_table.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view join_attempt = "join the soft device's fabric";
/// Connections that nobody has served yet; the kernel caps it at net.core.somaxconn.
constexpr int backlog = 4096;

struct Name {
    Descriptor socket;
    std::uint32_t number = 0;
};

/// Binds the first free number: the kernel sees to it that nobody else gets it while we live.
Name take_number(std::string_view fabric) {
    const std::string object = fmt::format("'{}'", fabric);
    Descriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!socket) base::throw_errno(errno, std::string{join_attempt}, object);
    for (std::uint32_t number = 1; number <= max_node_number; ++number) {
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

class LocalNode final : public Node {
  public:
    LocalNode(std::string_view fabric, bool membarrier)
        : fabric_{fabric},
          name_{take_number(fabric)},
          memory_{std::make_shared<NodeMemory>(fabric, name_.number, membarrier)},
          regions_{std::make_shared<RegionTable>(memory_->regions())},
          usable_{std::make_shared<std::atomic<bool>>(true)},
          liveness_{std::make_shared<Liveness>()},
          self_{own_node_as_peer(name_.number, memory_, regions_, usable_)} {
        // From here on peers find us, and everything is there.
        if (::listen(name_.socket.get(), backlog) != 0) {
            base::throw_errno(errno, std::string{join_attempt}, fmt::format("'{}'", fabric));
        }
    }

    ~LocalNode() override {
        if (!usable()) return;  // a child made by fork: the node is its parent's
        memory_->end();
        usable_->store(false, std::memory_order_release);
    }

    bool usable() const noexcept override { return usable_->load(std::memory_order_acquire); }
    std::uint32_t number() const noexcept override { return name_.number; }
    const NodeIdentity& identity() const noexcept override { return memory_->identity(); }
    bool membarrier() const noexcept override { return memory_->membarrier(); }
    AtomicLocks& atomic_locks() noexcept override { return memory_->atomic_locks(); }

    std::optional<Block> allocate_block(std::size_t size, BlockUse use) override {
        if (!usable()) {
            errno = ENODEV;
            return std::nullopt;
        }
        drop_connections();
        return memory_->allocate(size, use);
    }

    void free_block(const Block& block, bool quarantine) noexcept override {
        if (usable()) memory_->free(block, quarantine);
    }

    FilePlace place_of(const Block& block) noexcept override { return memory_->place_of(block); }
    CopyBell& copy_bell() noexcept override { return memory_->membership().copy_bell; }

    int add_region(void* address, std::size_t length, std::uint64_t iova, std::uint32_t access,
                   std::uint32_t pd, LocalRegion& region) override {
        return usable() ? regions_->add(address, length, iova, access, pd, region) : ENODEV;
    }
    int add_nothing(std::uint32_t pd, LocalRegion& region) override {
        return usable() ? regions_->add_nothing(pd, region) : ENODEV;
    }
    std::uint32_t add_window() override { return usable() ? regions_->add_window() : 0; }
    void bind_window(std::uint32_t key, const RegionEntry& parent,
                     const WindowFacts& facts) noexcept override {
        if (usable()) regions_->bind_window(key, parent, facts);
    }
    void release_window(std::uint32_t key) noexcept override {
        if (usable()) regions_->release_window(key);
    }
    void invalidate_region(std::uint32_t key) noexcept override {
        if (usable()) regions_->invalidate(key);
    }
    void release_region(std::uint32_t key, bool quarantine) noexcept override {
        if (usable()) regions_->release(key, quarantine);
    }
    const RegionEntry* local_region(std::uint32_t key) const noexcept override {
        return regions_->valid(key);
    }
    bool is_window(std::uint32_t key) const noexcept override { return regions_->is_window(key); }

    std::shared_ptr<PeerNode> peer(std::uint32_t number) override {
        const base::Uncancelled held;
        if (!usable()) {
            errno = ENODEV;
            return nullptr;
        }
        if (number == name_.number) return self_;
        if (number == 0 || number > max_node_number) return nullptr;
        drop_connections();
        const std::scoped_lock lock{peers_mutex_};
        std::weak_ptr<RemoteNode>& known = peers_[number];
        if (auto peer = known.lock(); peer != nullptr && peer->still_there()) return peer;
        auto peer = connect_to_node(fabric_, number, liveness_);
        known = peer;
        return peer;
    }

    std::vector<std::uint32_t> node_numbers() const override {
        const base::Uncancelled held;
        return list_nodes(::geteuid(), fabric_);
    }
    GroupEntry* groups() noexcept override { return memory_->groups(); }
    std::atomic<std::uint32_t>& membership() noexcept override {
        return memory_->membership().epoch;
    }

    bool check_liveness() noexcept override { return usable() && liveness_->check(); }
    int liveness_descriptor() const noexcept override { return liveness_->descriptor(); }

    void lock_for_fork() {
        peers_mutex_.lock();
        liveness_->mutex().lock();
        regions_->mutex().lock();
        memory_->mutex().lock();
    }
    void unlock_after_fork() {
        memory_->mutex().unlock();
        regions_->mutex().unlock();
        liveness_->mutex().unlock();
        peers_mutex_.unlock();
    }
    /// In the child, all locks held. Closes what would keep the node's name, or the belief that
    /// its process lives, beyond the parent's end.
    void abandon_in_child() {
        usable_->store(false, std::memory_order_release);
        liveness_->abandon();
        name_.socket.close();
        memory_->abandon();
        for (auto& [number, known] : peers_) {
            if (auto peer = known.lock()) peer->abandon();
        }
    }

  private:
    /// Nobody is ever answered here. But connections stay in the queue until somebody takes them
    /// out, also those of peers that have long closed them, and it is not endless. (Where it is
    /// full, peers find us otherwise: peer_node.cpp.)
    void drop_connections() noexcept {
        for (int taken = 0; taken < backlog; ++taken) {
            const Descriptor connection{
                ::accept4(name_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
            if (!connection) break;
        }
    }

    const std::string fabric_;
    Name name_;
    const std::shared_ptr<NodeMemory> memory_;
    const std::shared_ptr<RegionTable> regions_;
    const std::shared_ptr<std::atomic<bool>> usable_;
    const std::shared_ptr<Liveness> liveness_;
    const std::shared_ptr<PeerNode> self_;

    std::mutex peers_mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<RemoteNode>> peers_;
};

/// The nodes of this process, for `join` and for fork. Never destroyed: fork may come after main.
struct Nodes {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<LocalNode>, std::less<>> by_fabric;
    std::vector<std::shared_ptr<LocalNode>> held_over_fork;
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

std::shared_ptr<Node> Node::join(std::string_view fabric) {
    check_fabric_name(fabric);
    static const int handlers = ::pthread_atfork(
        &before_fork, [] { after_fork(false); }, [] { after_fork(true); });
    if (handlers != 0) base::throw_errno(handlers, std::string{join_attempt}, "this process");

    Nodes& all = nodes();
    const std::scoped_lock lock{all.mutex};
    std::weak_ptr<LocalNode>& known = all.by_fabric[std::string{fabric}];
    if (auto node = known.lock()) return node;
    let_others_copy_if_asked();
    auto node = std::make_shared<LocalNode>(fabric, register_for_membarrier());
    known = node;
    return node;
}

}  // namespace millrace::soft
