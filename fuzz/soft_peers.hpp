// Peers for the fuzzers of the soft device: processes that make queue pairs and memory, say where
// they are, and then sleep, while the fuzzer writes their shared memory as if it were they.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::fuzz {

/// The kinds of connection that are tried.
enum Kind : std::uint32_t { kind_rc, kind_shared, kind_uc, kind_ud, kinds };

struct PeerFacts {
    struct Pair {
        std::uint32_t qpn = 0;
        std::uint32_t generation = 0;
        std::uint64_t offset = 0;  ///< of its block in the file of blocks
        std::uint64_t size = 0;
        std::uint64_t pool_offset = 0;  ///< of its receive pool's, if it has one
        std::uint64_t pool_size = 0;
    };
    std::array<Pair, kinds> pairs{};
    std::uint64_t shared = 0;  ///< addresses of its registered memory: can be mapped, and
    std::uint64_t plain = 0;   ///< can not
    std::uint32_t shared_key = 0;
    std::uint32_t plain_key = 0;
    std::uint32_t shared_descriptor = 0;
    std::uint32_t pd = 0;
    std::uint64_t high_water = 0;  ///< the file of blocks is in use up to here
};
inline constexpr std::size_t peer_memory = 8192;

/// If this program was started as a peer, does what peers do and ends.
void be_a_peer_if_asked();

class Peer {
  public:
    /// Starts one; its process ends with ours. Ends the program when that fails.
    Peer();

    [[nodiscard]] const PeerFacts& facts() const noexcept { return facts_; }
    /// Its blocks, writable, up to `facts().high_water`.
    [[nodiscard]] std::byte* node() const noexcept { return node_; }
    /// Its tables, writable: what it shows is not what the device made.
    [[nodiscard]] std::byte* tables() const noexcept { return tables_; }
    /// What it has registered as `shared`.
    [[nodiscard]] std::byte* shared() const noexcept { return shared_; }
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  private:
    pid_t pid_ = -1;
    PeerFacts facts_;
    std::byte* node_ = nullptr;
    std::byte* tables_ = nullptr;
    std::byte* shared_ = nullptr;
};

/// Memory that peers can map; `descriptor` is its file's. Ends the program when there is none.
[[nodiscard]] std::byte* map_shareable(std::size_t bytes, int& descriptor);

/// A queue pair of the kind, in INIT, of small queues. Ends the program when that fails.
[[nodiscard]] ibv_qp* make_queue_pair(Kind kind, ibv_pd* pd, ibv_cq* cq, ibv_srq* srq);

}  // namespace millrace::fuzz
