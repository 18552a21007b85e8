// The ibv_wr_* interface: collects the work requests between ibv_wr_start and ibv_wr_complete,
// which posts them like any chain given to ibv_post_send: there is one way to execute. Made by
// create_qp_ex for queue pairs with `send_ops_flags`.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "system/thread_lock.hpp"

namespace millrace::soft {

class WorkRequests {
  public:
    /// At most `sges` and `inline_bytes` per request. `single_threaded`: the program has promised
    /// (thread domain) that only one thread at a time uses the queue pair.
    WorkRequests(std::uint32_t sges, std::uint32_t inline_bytes, bool single_threaded)
        : sges_{sges}, inline_bytes_{inline_bytes}, single_threaded_{single_threaded} {}

    /// From here to `complete` or `abort`, other threads wait in `start`.
    void start() noexcept;
    /// Posts what was collected, all or (if one of them is not right, or there are more than
    /// `room`) nothing: 0 or an errno value.
    [[nodiscard]] int complete(ibv_qp& qp, std::uint32_t room) noexcept;
    void abort() noexcept;

    /// The next request, with the `wr_id` and `wr_flags` that the program has set; nullptr if there
    /// is no memory.
    [[nodiscard]] ibv_send_wr* add(const ibv_qp_ex& qp, ibv_wr_opcode opcode) noexcept;
    /// The last one added; nullptr (and `fail`) if there is none.
    [[nodiscard]] ibv_send_wr* last() noexcept;
    /// The data of the last one. Inline data is copied at once.
    void set_pieces(const ibv_sge* pieces, std::size_t count) noexcept;
    void set_inline(const ibv_data_buf* pieces, std::size_t count) noexcept;
    /// What `complete` will answer, unless it has failed before.
    void fail(int error) noexcept {
        if (error_ == 0) error_ = error;
    }

  private:
    struct Collected {
        ibv_send_wr request;
        std::size_t first;  ///< sge; of inline data, its only one
        bool has_data;
    };
    void unlock() noexcept {
        if (!single_threaded_) lock_.unlock();
    }

    ThreadLock lock_;
    std::uint32_t sges_;
    std::uint32_t inline_bytes_;
    bool single_threaded_;
    int error_ = 0;
    // They keep their memory: in the long run nothing is allocated.
    std::vector<Collected> collected_;
    std::vector<ibv_sge> pieces_;
    std::vector<std::byte> bytes_;
};

}  // namespace millrace::soft
