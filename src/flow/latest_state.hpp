// One end of latest values: its memory, and what it knows of the cells. latest.hpp has the
// protocol, latest.cpp carries it out, latest_setup.cpp makes both ends.
#pragma once

#include "millrace/flow/latest.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/status.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::flow::detail {

struct LatestFacts;

struct LatestEnd::State {
    /// Of a value, in each cell.
    static constexpr std::uint64_t places = 4;
    /// Values of the writer that may be on their way.
    static constexpr std::uint32_t most_staged = 32;

    class ValueSleeper final : public end::Sleeper {
      public:
        explicit ValueSleeper(State& state)
            : Sleeper{state.end.link(), state.end.window(), state.page(),
                      state.page_memory.region()},
              state_{&state} {}

      private:
        bool is_news(std::uint64_t progress) noexcept override {
            return progress != state_->reading.total;
        }
        State* state_;
    };

    State(Role its_role, const ItemFacts& item, connect::Link connected, LatestOptions chosen,
          const base::Deadline& deadline);
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    [[nodiscard]] end::WakeUpPage& page() noexcept {
        return *reinterpret_cast<end::WakeUpPage*>(page_memory.data());
    }
    void meet(const LatestFacts& peer);

    /// A version as it travels. 32 bits of it tell differences.
    [[nodiscard]] static std::uint64_t word_of(std::uint32_t version) noexcept {
        return ring::PositionWord::pack(std::uint64_t{version} * ring::PositionWord::unit);
    }
    // Versions of all cells lie side by side, values after them.
    [[nodiscard]] std::uint64_t values_at() const noexcept {
        return ring::round_up(std::uint64_t{cells} * sizeof(std::uint64_t), 64);
    }
    [[nodiscard]] std::uint64_t value_at(std::uint32_t cell, std::uint32_t version) const noexcept {
        return values_at() + (std::uint64_t{cell} * places + version % places) * place_bytes;
    }
    [[nodiscard]] std::uint64_t all_bytes() const noexcept {
        return values_at() + std::uint64_t{cells} * places * place_bytes;
    }

    // --- writer

    base::Status put(std::uint32_t cell, const std::byte* value) noexcept;
    base::Status flush(const base::Deadline& deadline);
    base::Status post(std::uint32_t cell, std::uint32_t version, const std::byte* value) noexcept;
    base::Status post_version(std::uint32_t cell, std::uint32_t version,
                              end::Signal signal) noexcept;
    void wake_peer() noexcept {
        if (writing.bell.ring() == base::Status::ok) ++counts.events;
    }

    // --- reader

    [[nodiscard]] bool version_of(std::uint32_t cell, std::uint32_t& version) const noexcept {
        const std::uint64_t word = ring::load_word(memory.data() + cell * sizeof(std::uint64_t));
        if (!ring::PositionWord::whole(word)) return false;
        version = static_cast<std::uint32_t>(word);
        return true;
    }
    /// `ok`: a copy of `version`. `empty`: none could be had.
    base::Status copy(std::uint32_t cell, std::byte* value, std::uint32_t& version) noexcept;
    [[nodiscard]] bool is_new(std::uint32_t cell) const noexcept {
        std::uint32_t version = 0;
        return version_of(cell, version) && version != reading.versions[cell];
    }
    /// The first cell from `from` on, going round, with a newer value; cells: none.
    [[nodiscard]] std::uint32_t find_new(std::uint32_t from) const noexcept {
        for (std::uint32_t i = 0; i != cells; ++i) {
            std::uint32_t cell = from + i;
            if (cell >= cells) cell -= cells;
            if (is_new(cell)) return cell;
        }
        return cells;
    }
    base::Status get(std::uint32_t cell, std::byte* value) noexcept;
    base::Status nothing() noexcept;
    base::Status look_around() noexcept;

    // --- both

    /// In a child made by fork.
    void become_copy() noexcept { (void)end.end(base::Status::peer_lost); }
    [[nodiscard]] bool is_copy() const noexcept { return end.window().is_copy(); }

    Role role;
    LatestOptions options;  ///< its endpoint outlives what is registered there
    std::uint64_t size;
    std::uint64_t alignment;
    std::uint64_t name;
    std::uint32_t cells = 0;
    std::uint64_t place_bytes = 0;

    // Declared in the order in which they may go: the queue pair before the memory it reaches.
    verbs::RegisteredBuffer memory;  ///< reader: cells; writer: values under way
    verbs::RegisteredBuffer page_memory;
    end::End end;

    struct Writing {
        end::Bell bell;
        ring::PeerMemory carrier;
        std::shared_ptr<std::byte> cells;  ///< of the reader, where values are stored
        verbs::RemoteAddress memory{};     ///< of the reader, where they are posted
        std::uint32_t max_inline = 0;
        std::vector<std::uint32_t> versions;                    ///< that were put, by cell
        std::array<std::uint64_t, most_staged> staged_until{};  ///< tickets
        std::uint32_t stage = 0;
        std::uint32_t last_cell = 0;
        std::uint64_t total = 0;
        std::uint64_t looked = 0;  ///< ticks of the last look after the reader
        std::uint64_t look_ticks = base::ticks_in(std::chrono::milliseconds{1});
    } writing;

    struct Reading {
        std::optional<ValueSleeper> sleeper;
        std::vector<std::uint32_t> versions;  ///< that were got, by cell
        std::uint64_t total = 0;              ///< sum of these
        std::uint32_t cursor = 0;
    } reading;

    LatestStats counts;
    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::flow::detail
