// The asking side of the copy service: this process wants bytes in or out of a peer's memory that
// the operating system does not let it copy. One per peer node, owned by it; called by executors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "fabric/fabric.hpp"
#include "layout/copy_box_layout.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

class CopyAsker {
  public:
    CopyAsker() = default;
    ~CopyAsker();
    CopyAsker(const CopyAsker&) = delete;
    CopyAsker& operator=(const CopyAsker&) = delete;

    /// `file`: the peer's node memory. Any thread; the peer answers one at a time. Waits for its
    /// service thread, at most some 250 ms if that does not take the question, and a second more if
    /// it does not come back from it. What comes after an unanswered one waits 2 ms.
    [[nodiscard]] CopyResult ask(PeerNode& peer, int file, const AskedCopy& wanted) noexcept;

  private:
    [[nodiscard]] bool map(PeerNode& peer, int file, std::uint64_t word) noexcept;
    [[nodiscard]] CopyResult ask_for(PeerNode& peer, const AskedCopy& wanted, std::size_t offset,
                                     std::size_t bytes) noexcept;
    [[nodiscard]] CopyResult await(PeerNode& peer) noexcept;

    std::mutex mutex_;  ///< guards what follows
    std::uint64_t word_ = 0;
    Block block_;
    Mapping bell_page_;
    CopyBox* box_ = nullptr;
    CopyBell* bell_ = nullptr;
    bool unanswered_ = false;  ///< the last question was
};

}  // namespace millrace::soft
