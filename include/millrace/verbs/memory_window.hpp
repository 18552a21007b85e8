// Memory windows of type 2: part of a region shown to the peer of one queue pair, by a work request
// of its owner's, and taken back by another one. Cheaper than a region for each peer, and closed
// without a word to the peer. InfiniBand specification, 10.6.7; ibv_alloc_mw(3).
//
//     auto window = MemoryWindow::allocate(domain);
//     int error = queue_pair.post(window.show(region, 4096, 64, Access::remote_write));
//     if (error == 0) tell_the_peer(window.remote());  // once it has completed
//     …
//     error = queue_pair.post(window.hide());          // once it completes, the key is none
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "millrace/base/error.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::verbs {

class Context;

/// In the access of a region, and of a RegisteredBuffer: windows may show parts of it.
inline constexpr Access shown_by_windows = static_cast<Access>(IBV_ACCESS_MW_BIND);

/// True if the device has windows of type 2. Throws Error as Context::attributes.
[[nodiscard]] bool has_windows(const Context& context);

/// Binds a window: MemoryWindow::show makes it.
struct BindWindow {
    std::uint64_t id = 0;
    ibv_mw* window = nullptr;
    std::uint32_t key = 0;
    ibv_mr* region = nullptr;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    Access remote = Access::none;
    SendFlags flags = SendFlags::none;
};
/// Ends a window's key: MemoryWindow::hide makes it.
struct InvalidateWindow {
    std::uint64_t id = 0;
    std::uint32_t key = 0;
    SendFlags flags = SendFlags::none;
};

[[nodiscard]] inline ibv_send_wr to_raw(const BindWindow& request) noexcept {
    ibv_send_wr wr{};
    wr.wr_id = request.id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = static_cast<unsigned>(request.flags);
    wr.bind_mw.mw = request.window;
    wr.bind_mw.rkey = request.key;
    wr.bind_mw.bind_info.mr = request.region;
    wr.bind_mw.bind_info.addr = request.address;
    wr.bind_mw.bind_info.length = request.length;
    // A region's own rights are none that a window could give: local write comes with remote.
    wr.bind_mw.bind_info.mw_access_flags =
        static_cast<unsigned>(request.remote) & ~unsigned{IBV_ACCESS_LOCAL_WRITE};
    return wr;
}
[[nodiscard]] inline ibv_send_wr to_raw(const InvalidateWindow& request) noexcept {
    ibv_send_wr wr{};
    wr.wr_id = request.id;
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = static_cast<unsigned>(request.flags);
    wr.invalidate_rkey = request.key;
    return wr;
}

/// A window. Move-only; it goes before its domain, and before the region that it shows. One thread.
class MemoryWindow {
  public:
    MemoryWindow() noexcept = default;
    /// Throws Error (unsupported: the device has none; resource_exhausted).
    [[nodiscard]] static MemoryWindow allocate(ProtectionDomain& domain);
    MemoryWindow(MemoryWindow&& other) noexcept;
    MemoryWindow& operator=(MemoryWindow&& other) noexcept;
    MemoryWindow(const MemoryWindow&) = delete;
    MemoryWindow& operator=(const MemoryWindow&) = delete;
    /// What is deallocated shows nothing any more.
    ~MemoryWindow();

    /// To be posted to the queue pair whose peer is to reach `length` bytes at `offset` of
    /// `region`, of the window's domain and `shown_by_windows`. Its peers' requests may use
    /// remote() behind that one's completion. A key is valid for this queue pair alone, and the one
    /// before it is none any more; a window that shows something has to be hidden before it is
    /// shown through another queue pair.
    [[nodiscard]] BindWindow show(const MemoryRegion& region, std::size_t offset,
                                  std::size_t length, Access remote, std::uint64_t id = 0,
                                  SendFlags flags = SendFlags::signaled) noexcept;
    /// To be posted to the same queue pair.
    [[nodiscard]] InvalidateWindow hide(std::uint64_t id = 0,
                                        SendFlags flags = SendFlags::signaled) const noexcept {
        return {id, remote_.rkey, flags};
    }
    /// What the peer needs to reach the beginning of what was shown last.
    [[nodiscard]] RemoteAddress remote() const noexcept { return remote_; }
    [[nodiscard]] ibv_mw* raw() const noexcept { return raw_; }

  private:
    explicit MemoryWindow(ibv_mw* raw) noexcept : raw_{raw}, remote_{0, raw->rkey} {}
    ibv_mw* raw_ = nullptr;
    RemoteAddress remote_;
};

}  // namespace millrace::verbs
