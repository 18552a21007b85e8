// The reader's side of what is said between a log and a reader: takes one frame after the other and
// checks that the sequence has neither gap nor repetition. No I/O; see subscription.hpp for the
// other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "log/words.hpp"

namespace millrace::flow::detail {

class LogFollower {
  public:
    enum class State : std::uint8_t {
        joining,
        reading,
        passed,
        skipping,
        refused,
        displaced,
        stopped  ///< its filter threw, see text()
    };
    enum class Heard : std::uint8_t {
        items,   ///< items() are next
        chosen,  ///< next_chosen() gives them, until there is none
        change,  ///< state() is another one
        wrong,   ///< no log says that; fault() tells what
    };

    explicit LogFollower(const LogShape& shape) noexcept : shape_{shape} {}

    /// After items(), all of them must have been passed by move_to() before the next frame.
    [[nodiscard]] Heard take(std::span<const std::byte> frame) noexcept {
        std::uint64_t packed = 0;
        if (frame.size() < sizeof packed) return fail("a frame without a word");
        std::memcpy(&packed, frame.data(), sizeof packed);
        const LogWord word = LogWord::unpack(packed);
        const auto rest = frame.subspan(sizeof packed);
        if (word.say == LogSay::items) [[likely]] {
            if (state_ != State::reading) return fail("items that nobody waits for");
            if (word.position != position_) return fail("items out of their order");
            if (rest.empty() || (!shape_.is_framed() && rest.size() % shape_.item_size != 0)) {
                return fail("a part of an item");
            }
            items_ = rest;
            return Heard::items;
        }
        return word.say == LogSay::chosen ? take_chosen(word, rest) : take_word(word, rest);
    }
    /// The next item that a filter let pass, with the record that it lies in, and its position.
    /// None: all were taken, and everything before chosen_end() was looked at; or heard() says
    /// `wrong` by now.
    struct Chosen {
        std::span<const std::byte> item;
        std::span<const std::byte> record;
        std::uint64_t position = 0;
    };
    [[nodiscard]] std::optional<Chosen> next_chosen() noexcept;
    [[nodiscard]] std::uint64_t chosen_end() const noexcept { return chosen_.next; }
    /// Items so far for which the filter threw.
    [[nodiscard]] std::uint64_t threw() const noexcept { return chosen_.threw; }
    [[nodiscard]] bool is_wrong() const noexcept { return *fault_ != 0; }
    /// What the log has said of a filter: why it has none, or what that threw, and where.
    [[nodiscard]] const std::string& text() const noexcept { return text_; }
    [[nodiscard]] std::uint64_t thrown_at() const noexcept { return thrown_at_; }
    /// What items lie in the frame that was taken last.
    [[nodiscard]] std::span<const std::byte> items() const noexcept { return items_; }
    /// Everything before it was taken out.
    void move_to(std::uint64_t position) noexcept { position_ = position; }

    /// The program goes on where the log can: `begins` is to come.
    void skip() noexcept { state_ = State::skipping; }

    [[nodiscard]] State state() const noexcept { return state_; }
    /// Of the next item.
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    /// The first one that is kept, where retention has passed it by or it was refused.
    [[nodiscard]] std::uint64_t first_kept() const noexcept { return first_kept_; }
    [[nodiscard]] const LogFacts& facts() const noexcept { return facts_; }
    [[nodiscard]] LogRefusal refusal() const noexcept { return refusal_; }
    [[nodiscard]] const char* fault() const noexcept { return fault_; }

  private:
    Heard take_word(const LogWord& word, std::span<const std::byte> rest) noexcept;
    Heard take_chosen(const LogWord& word, std::span<const std::byte> rest) noexcept;
    void take_text(std::span<const std::byte> text) noexcept;
    Heard become(State state) noexcept {
        state_ = state;
        return Heard::change;
    }
    Heard fail(const char* fault) noexcept {
        fault_ = fault;
        return Heard::wrong;
    }

    LogShape shape_;
    State state_ = State::joining;
    LogRefusal refusal_ = LogRefusal::none;
    std::span<const std::byte> items_;
    std::uint64_t position_ = 0;
    std::uint64_t first_kept_ = 0;
    LogFacts facts_{};
    LogChosenHead chosen_{};
    std::uint64_t chosen_begin_ = 0;
    std::uint64_t chosen_at_ = 0;  ///< the next item is not before it
    std::uint64_t thrown_at_ = 0;
    std::string text_;
    const char* fault_ = "";
};

}  // namespace millrace::flow::detail
