// What arrives over the wire at a connected queue pair, done in this process's memory: the receive
// side of roce's state machines. Part of `Connected`, by who holds the queue pair's send side.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <span>

#include "roce/sides.hpp"
#include "transport/receiver.hpp"

namespace millrace::soft {

class Arrivals final : public roce::ReceiveSide {
  public:
    struct Of {
        const BlockView& block;
        const End& end;
        Counters& counters;
        Node& node;
        bool asymmetric;
    };
    explicit Arrivals(const Of& of) noexcept;
    ~Arrivals() = default;

    [[nodiscard]] roce::Outcome claim() noexcept override;
    [[nodiscard]] roce::Outcome begin_write(std::uint32_t key, std::uint64_t address,
                                            std::uint32_t length) noexcept override;
    [[nodiscard]] roce::Outcome place(std::uint32_t offset,
                                      std::span<const std::uint8_t> bytes) noexcept override;
    [[nodiscard]] roce::Outcome finish(const roce::Arrival& arrival) noexcept override;
    [[nodiscard]] roce::Outcome check_read(std::uint32_t key, std::uint64_t address,
                                           std::uint32_t length) noexcept override;
    [[nodiscard]] roce::Outcome read(std::uint32_t key, std::uint64_t address,
                                     std::span<std::uint8_t> to) noexcept override;
    /// Before and after an atomic: memory that peers do not map they change under a lock. False:
    /// somebody has had it for longer than one atomic takes, and may be stopped.
    [[nodiscard]] bool lock_word(std::uint32_t key, std::uint64_t address) noexcept;
    void unlock_word() noexcept;
    [[nodiscard]] roce::Outcome atomic(roce::Operation operation, std::uint32_t key,
                                       std::uint64_t address, std::uint64_t compare_or_add,
                                       std::uint64_t swap,
                                       std::uint64_t& original) noexcept override;
    void failed(roce::Status status) noexcept override;

  private:
    /// Where a WRITE goes. One that was begun and not finished says nothing of the next message.
    struct Write {
        std::uint32_t key = 0;
        std::uint64_t address = 0;
        bool is_new = false;      ///< none of its bytes are placed
        bool is_current = false;  ///< what is placed is its
    };
    /// As the receiver has refused it.
    [[nodiscard]] roce::Outcome refused() noexcept;
    /// Where the message's bytes from `offset` on go.
    [[nodiscard]] bool find(std::uint64_t offset, std::uint64_t bytes, Pieces& pieces,
                            std::uint32_t& count) noexcept;

    const Of of_;
    Receiver receiver_;
    Consumed receive_;
    Write write_;
    std::optional<std::uint64_t> locked_;  ///< the address of a word
};

}  // namespace millrace::soft
