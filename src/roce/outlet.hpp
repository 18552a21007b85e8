// Where packets leave: what the state machines of roce/ ask of whoever sends datagrams. One outlet
// leads to one destination.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::roce {

class Outlet {
  public:
    Outlet() = default;
    Outlet(const Outlet&) = delete;
    Outlet& operator=(const Outlet&) = delete;

    /// Room for one packet of so many bytes, from its BTH to the end of its padding; what comes
    /// before and after it (addresses, ICRC) is the outlet's. Null: nothing may leave now; whoever
    /// asked asks again when its owner calls `send` the next time. Room that is not committed is
    /// given again.
    [[nodiscard]] virtual std::uint8_t* begin(std::size_t bytes) noexcept = 0;
    /// What was begun is a whole packet. It leaves then, or with others.
    virtual void commit() noexcept = 0;

  protected:
    ~Outlet() = default;
};

}  // namespace millrace::roce
