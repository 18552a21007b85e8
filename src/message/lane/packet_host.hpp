// A server's end of all its clients by UC, or by UD, or through a shared buffer: what they have in
// common, and whose of them a packet is. Used by packet_lane.hpp, whose head says how each works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lane/packet_lane.hpp"
#include "millrace/connect/readiness.hpp"
#include "millrace/connect/socket_watch.hpp"
#include "millrace/verbs/completion_queue.hpp"

namespace millrace::message {

/// A server's end of all its clients by UC, or by UD, or through a shared buffer.
class PacketHost final : public LaneHost {
  public:
    struct Setting {
        connect::Transport transport = connect::Transport::ud;  ///< `rc`: by a shared buffer
        PacketMemory memory{};                                  ///< for each client
        PacketPosting posting{};
        std::uint32_t receives = 0;  ///< of the pool (UD)
        std::uint32_t max_clients = 0;
        std::uint32_t shared_slots = 0;        ///< rc: packets of a client in the shared buffer
        std::size_t shared_bytes = 0;          ///< rc: of that
        ScanKernel scan = best_scan_kernel();  ///< rc: of its words
    };
    /// Sets what a listener needs for such links in `link`, whose endpoint is set. Throws Error
    /// (resource_exhausted, verbs).
    PacketHost(const Setting& setting, connect::LinkOptions& link);
    ~PacketHost() override;

    [[nodiscard]] std::unique_ptr<NetworkLane> meet(connect::Link link) override;
    void look(std::vector<std::uint32_t>& places) override;
    [[nodiscard]] int descriptor() const noexcept override { return readiness_->descriptor(); }
    void rest() noexcept override;
    [[nodiscard]] std::string explain() const override;

    // --- for its lanes

    [[nodiscard]] bool is_ud() const noexcept {
        return setting_.transport == connect::Transport::ud;
    }
    [[nodiscard]] bool is_shared() const noexcept {
        return setting_.transport == connect::Transport::rc;
    }
    /// Of the shared buffer, for this lane.
    [[nodiscard]] SharedFacts shared_facts(const PacketLane& lane) const noexcept;
    [[nodiscard]] std::uint32_t shared_slots() const noexcept { return setting_.shared_slots; }
    /// A token by which packets to this lane are found.
    [[nodiscard]] std::uint64_t add(PacketLane& lane);
    void remove(PacketLane& lane, std::uint64_t token) noexcept;
    [[nodiscard]] end::SendWindow& window() noexcept { return *window_; }
    /// A slot of the pool is free again.
    void give_back(std::uint32_t slot) noexcept;
    void poll() noexcept;
    /// Keeps what packets may be sent from still, until they have left.
    void bury(std::uint64_t ticket, connect::Link link, verbs::RegisteredBuffer memory);

  private:
    /// What all clients by UD share.
    struct Station {
        verbs::CompletionQueue sent;
        verbs::DatagramQueuePair pair;
        Slots slots{};
        std::uint32_t posted = 0;
    };
    /// What all clients of a shared buffer share.
    struct Shared {
        Shared(verbs::ProtectionDomain& domain, const SharedShape& shape, ScanKernel kernel);
        verbs::RegisteredBuffer memory;
        SharedReader reader;
        std::vector<PacketLane*> lanes;  ///< by place; up to the highest that was ever taken
        std::vector<std::uint32_t> free;
    };
    struct Buried {
        std::uint64_t ticket;
        verbs::RegisteredBuffer memory;
        connect::Link link;
    };

    void open_station(connect::LinkOptions& link);
    void take(const verbs::Completion& completion) noexcept;
    void take_datagram(const verbs::Completion& completion) noexcept;
    void tell(PacketLane& lane) noexcept;

    Setting setting_;
    std::shared_ptr<connect::Endpoint> endpoint_;
    verbs::CompletionChannel channel_;
    verbs::CompletionQueue completions_;
    verbs::RegisteredBuffer memory_;  ///< of the pool
    std::vector<Buried> buried_;
    Station station_;
    std::unique_ptr<Shared> shared_;
    std::optional<end::SendWindow> window_;
    connect::SocketWatch sockets_;
    std::optional<connect::Readiness> readiness_;

    std::vector<PacketLane*> by_place_;  ///< UD: by the lowest bits of the token
    std::vector<std::uint32_t> free_places_;
    std::vector<std::uint64_t> tokens_;
    std::unordered_map<std::uint32_t, PacketLane*> by_pair_;  ///< UC
    std::vector<PacketLane*> told_;
    std::size_t lanes_ = 0;  ///< that there are
    std::uint64_t sockets_looked_at_ = 0;
    std::uint64_t sockets_every_;
    bool sockets_are_due_ = true;
    std::uint64_t foreign_ = 0;
};

}  // namespace millrace::message
