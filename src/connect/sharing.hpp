// What listeners of several threads that share an address have together: the listening socket, the
// ledger, and for each of them the peers that another one has heard and that are its own. A
// listener alone has one as well. Used by listener.cpp.
//
// The invariant: until a peer has said hello, nothing but its socket belongs to it; from then on
// its handshake, and all that is made by it, belong to one listener, and so to one thread.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "descriptor.hpp"
#include "handshake.hpp"
#include "ledger.hpp"
#include "millrace/base/error.hpp"
#include "sockets.hpp"

namespace millrace::connect {

/// Any thread, but for making it.
class Sharing {
  public:
    static constexpr std::size_t most_listeners = 256;

    /// Throws Error (resource_exhausted).
    Sharing(Listening its_listening, const Budget& budget, std::size_t listeners)
        : listening{std::move(its_listening)}, ledger{std::make_shared<Ledger>(budget, listeners)} {
        if (listeners == 1) return;
        for (std::size_t number = 0; number < listeners; ++number) {
            doors_.push_back(std::make_unique<Door>());
            doors_.back()->bell = Descriptor{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
            if (doors_.back()->bell.valid()) continue;
            base::throw_errno(errno, "listen", listening.address.to_string(),
                              "raise the limit of open files (ulimit -n)");
        }
    }
    Sharing(const Sharing&) = delete;
    Sharing& operator=(const Sharing&) = delete;
    ~Sharing() { unlink_own(listening); }

    /// Several listeners share it.
    [[nodiscard]] bool has_several() const noexcept { return !doors_.empty(); }
    /// Readable while take() has some for that listener.
    [[nodiscard]] int bell(std::uint32_t listener) const noexcept {
        return doors_[listener]->bell.get();
    }
    /// False, and `handshake` stays: it has closed, or `most` are waiting already.
    [[nodiscard]] bool give(std::uint32_t listener, Handshake& handshake, std::size_t most) {
        Door& door = *doors_[listener];
        const std::lock_guard guard{door.mutex};
        if (door.is_closed || door.waiting.size() >= most) return false;
        door.waiting.push_back(std::move(handshake));
        (void)eventfd_write(door.bell.get(), 1);
        return true;
    }
    [[nodiscard]] std::vector<Handshake> take(std::uint32_t listener) {
        Door& door = *doors_[listener];
        const std::lock_guard guard{door.mutex};
        eventfd_t count = 0;
        (void)eventfd_read(door.bell.get(), &count);
        return std::exchange(door.waiting, {});
    }
    /// The listener goes: it is given no more, and whoever waits for it is let go of.
    void close(std::uint32_t listener) noexcept {
        ledger->close(listener);
        if (!has_several()) return;
        Door& door = *doors_[listener];
        const std::lock_guard guard{door.mutex};
        door.is_closed = true;
        door.waiting.clear();
    }

    const Listening listening;
    const std::shared_ptr<Ledger> ledger;

  private:
    struct Door {
        std::mutex mutex;  ///< of all that follows
        Descriptor bell;   ///< rung for each of:
        std::vector<Handshake> waiting;
        bool is_closed = false;
    };
    std::vector<std::unique_ptr<Door>> doors_;  ///< by number; none for a listener alone
};

}  // namespace millrace::connect
