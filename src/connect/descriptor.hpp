// A file descriptor with an owner, which does not outlive its process: a child made by fork finds
// it closed. Otherwise a child would keep its parent's connections open, and nobody would hear of
// the parent's death; or say goodbye for it. Used by this folder only.
#pragma once

#include <cstdint>
#include <utility>

#include "millrace/base/standard_streams.hpp"

namespace millrace::connect {

class Descriptor {
  public:
    Descriptor() noexcept = default;
    /// Takes a new descriptor (negative: none), or with 0 to 2, which are the program's standard
    /// streams, a copy of it above them.
    explicit Descriptor(int number) : number_{base::above_standard_streams(number)} {
        if (number_ >= 0) generation_ = adopt(number_);
    }
    Descriptor(Descriptor&& other) noexcept
        : number_{std::exchange(other.number_, -1)}, generation_{other.generation_} {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        std::swap(generation_, other.generation_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (valid()) release(number_);
    }
    /// -1: none, or it belongs to the parent.
    [[nodiscard]] int get() const noexcept {
        return number_ >= 0 && generation_ == generation() ? number_ : -1;
    }
    [[nodiscard]] bool valid() const noexcept { return get() >= 0; }

  private:
    /// How many forks lie between the first process and this one.
    [[nodiscard]] static std::uint32_t generation() noexcept;
    /// From now on closed in children. Returns generation(). Closes it and throws std::bad_alloc
    /// when it cannot be noted.
    static std::uint32_t adopt(int number);
    static void release(int number) noexcept;

    int number_ = -1;
    std::uint32_t generation_ = 0;
};

}  // namespace millrace::connect
