// The doors that a server was told to open: listeners, services, and a part of each for each of its
// threads. Made and used by Server.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "doors/door.hpp"
#include "doors/door_service.hpp"
#include "doors/tls.hpp"
#include "gate.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/connect/plain_listener.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/store.hpp"
#include "saves.hpp"

namespace millrace::kv {

/// Its counts are any thread's, as each Door's.
class OpenDoors {
  public:
    /// Throws Error as connect::PlainListener and TlsIdentity, and resource_exhausted.
    OpenDoors(Store& store, Gate& gate, const DoorOptions& options);
    OpenDoors(const OpenDoors&) = delete;
    OpenDoors& operator=(const OpenDoors&) = delete;
    ~OpenDoors();

    /// Before they serve: what DoorService has besides.
    void call(const std::function<void()>& note_expiring, Saves& saves);
    /// None: there is no door.
    [[nodiscard]] bool empty() const noexcept;
    /// Calls `visit(door)` with the parts of a thread.
    template <class Visit>
    void each_of(std::size_t thread, Visit&& visit) {
        for (const auto& one : doors_) {
            if (one != nullptr) visit(*one->parts[thread]);
        }
    }
    /// Closes all connections.
    void close() noexcept;

    /// Null: it is not open.
    [[nodiscard]] const connect::Address* address(DoorKind kind) const noexcept;
    [[nodiscard]] DoorStats stats(DoorKind kind) const noexcept;
    void add_times(DoorKind kind, base::Histogram& to) const;

  private:
    struct One {
        One(const connect::Address& address, std::unique_ptr<DoorService> its_service);
        [[nodiscard]] DoorStats stats() const noexcept;

        connect::PlainListener listener;
        std::unique_ptr<DoorService> service;
        std::vector<std::unique_ptr<Door>> parts;  ///< by thread
    };
    [[nodiscard]] const One* find(DoorKind kind) const noexcept {
        return doors_[static_cast<std::size_t>(kind)].get();
    }
    void open_resp(Store& store, Gate& gate, const DoorOptions& options);
    void open_memcached(Store& store, Gate& gate, const DoorOptions& options);

    DoorCrowd crowd_;
    std::optional<TlsIdentity> identity_;
    std::array<std::unique_ptr<One>, door_kinds> doors_;
};

}  // namespace millrace::kv
