// A command that librdmacm wrote: its structure, and where the answer goes. Called by the Manager's
// commands.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace millrace::cm {

class Request {
  public:
    Request(std::span<const std::byte> bytes, std::size_t room) noexcept
        : bytes_{bytes}, room_{room} {}

    /// What an older librdmacm's structure does not have is zero.
    template <class Command>
    [[nodiscard]] Command as() const noexcept {
        static_assert(std::is_trivially_copyable_v<Command>);
        Command command{};
        std::memcpy(&command, bytes_.data(), std::min(bytes_.size(), sizeof command));
        return command;
    }

    /// Writes as much of the answer as there is room for: 0; ENOSPC, not even `least` bytes;
    /// EFAULT, nowhere.
    template <class Answer>
    [[nodiscard]] int answer(std::uint64_t address, const Answer& answer,
                             std::size_t least = sizeof(Answer)) const noexcept {
        static_assert(std::is_trivially_copyable_v<Answer>);
        if (room_ < least) return ENOSPC;
        if (address == 0) return EFAULT;
        std::memcpy(reinterpret_cast<void*>(address), &answer, std::min(room_, sizeof answer));
        return 0;
    }
    [[nodiscard]] bool has_room_for(std::size_t bytes) const noexcept { return room_ >= bytes; }

  private:
    std::span<const std::byte> bytes_;
    std::size_t room_;
};

}  // namespace millrace::cm
