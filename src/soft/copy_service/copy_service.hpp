// The serving side of the copy service: a thread of this process that copies for peers what the
// operating system does not let them copy from and to its memory themselves. Owned by the process;
// there is no thread as long as there is neither such a peer nor memory that has to be copied.
// docs/soft/copy-service.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/node.hpp"
#include "layout/copy_box_layout.hpp"
#include "layout/hazard.hpp"
#include "receives/datagram.hpp"
#include "transport/connection_end.hpp"

namespace millrace::soft {

/// A queue pair of this process, as far as its peers may have something copied through it.
struct CopyGranter {
    const End* end;
    const Datagram* datagram;                  ///< of a UD queue pair
    const std::atomic<std::uint64_t>* broken;  ///< not 0: a stopped executor never let go of it
};

class CopyService {
  public:
    explicit CopyService(Node& node) noexcept : node_{node} {}
    ~CopyService() { stop(); }
    CopyService(const CopyService&) = delete;
    CopyService& operator=(const CopyService&) = delete;

    /// Whether the peer of a queue pair that is being connected is to be served from the beginning:
    /// it cannot know that we sleep.
    [[nodiscard]] static bool likely_needed(PeerNode& peer) noexcept;

    /// From here to `forget`, the peer that the queue pair is connected to may ask. Nothing if it
    /// may already. `at_once`: it has asked for it.
    void serve(QueuePairsHeld, const CopyGranter& granter, PeerNode& peer, bool at_once) noexcept;
    /// The same for a sender of datagrams to it, which wants it.
    void serve_sender(QueuePairsHeld, const CopyGranter& granter,
                      std::shared_ptr<PeerNode> sender) noexcept;
    /// Ends what senders of datagrams had that are dead.
    void forget_dead() noexcept;
    /// The peers' executors are out.
    void forget(QueuePairsHeld, const End& end) noexcept;
    /// Ends the thread. Before the queue pairs that were never forgotten end.
    void stop() noexcept;
    /// Memory was registered that peers have to copy.
    void need_thread() noexcept;

    /// Odd while the thread checks or copies. Whoever takes a right back waits for it, as for the
    /// hazards of executors: until it is not what it was.
    [[nodiscard]] std::uint64_t working() const noexcept {
        return working_.word.load(std::memory_order_acquire);
    }
    /// With `region`: is it out of that?
    [[nodiscard]] bool out(std::uint64_t seen, const FencedKey* region = nullptr) const noexcept {
        return (seen & 1) == 0 || working() != seen ||
               (region != nullptr && !region->may_be_in(working_, named_by_receiver));
    }

  private:
    struct Box {
        Box(Node& owner, const Block& memory, const NodeIdentity& asker) noexcept
            : node{owner}, block{memory}, peer{asker} {}
        ~Box() { node.free_block(block, quarantine); }
        Box(const Box&) = delete;
        Box& operator=(const Box&) = delete;
        [[nodiscard]] CopyBox& shared() const noexcept {
            return *reinterpret_cast<CopyBox*>(block.memory);
        }
        Node& node;
        Block block;
        NodeIdentity peer;
        int file = -1;  ///< of the node memory, and where the block lies in it
        std::uint64_t offset = 0;
        std::size_t users = 0;
        bool quarantine = false;
    };
    struct Served {
        CopyGranter granter;
        std::shared_ptr<Box> box;
        /// Of datagrams; null: it is the peer that the queue pair is connected to.
        std::shared_ptr<PeerNode> sender;
    };

    /// Serves the peer: the word that names its box. 0: it cannot be served (logged).
    [[nodiscard]] std::uint64_t admit(const CopyGranter& granter, PeerNode& peer,
                                      std::shared_ptr<PeerNode> sender) noexcept;
    /// Ends one of those that `match`; false: there is none.
    template <class Match>
    bool dismiss(Match&& match) noexcept;
    void start() noexcept;
    void run() noexcept;
    /// True: something was asked for.
    [[nodiscard]] bool look() noexcept;
    /// Has the peer of the box, through that queue pair, this right? With the mutex.
    [[nodiscard]] CopyOutcome check(const Box& box, const CopyQuestion& question) noexcept;
    [[nodiscard]] bool may_use(const End& end, const CopyQuestion& question) const noexcept;
    /// The key of the posted receive's memory that is asked for; 0: there is none.
    [[nodiscard]] std::uint32_t posted_key(const End& end,
                                           const CopyQuestion& question) const noexcept;
    [[nodiscard]] static CopyOutcome copy(const Box& box, const CopyQuestion& question) noexcept;

    Node& node_;
    std::mutex mutex_;  ///< a leaf, but for those of receive pools
    std::vector<Served> served_;
    std::vector<std::shared_ptr<Box>> boxes_;
    bool private_memory_ = false;
    bool asked_for_ = false;
    std::unique_ptr<std::thread> thread_;
    int process_ = 0;
    Hazard working_{};
    std::atomic<bool> stop_{false};
};

}  // namespace millrace::soft
