// The reader's side of what is said between a log and a reader, see the header.
#include "log/follower.hpp"

#include <algorithm>
#include <exception>

namespace millrace::flow::detail {

LogFollower::Heard LogFollower::take_word(const LogWord& word,
                                          std::span<const std::byte> rest) noexcept {
    const bool has_text = word.say == LogSay::refused || word.say == LogSay::threw;
    if (rest.size() < sizeof(LogFacts) ||
        rest.size() - sizeof(LogFacts) > (has_text ? longest_log_text : 0)) {
        return fail("a word without its facts");
    }
    LogFacts facts{};
    std::memcpy(&facts, rest.data(), sizeof facts);
    switch (word.say) {
        case LogSay::joined:
            if (state_ != State::joining) return fail("a second welcome");
            if (facts.first > facts.end || word.position > facts.end) {
                return fail("a welcome beyond its end");
            }
            facts_ = facts;
            position_ = word.position;
            return become(State::reading);
        case LogSay::refused:
            if (state_ != State::joining) return fail("a refusal after a welcome");
            refusal_ = static_cast<LogRefusal>(facts.sequence);
            take_text(rest.subspan(sizeof facts));
            first_kept_ = word.position;
            return become(State::refused);
        case LogSay::passed:
            if (state_ != State::reading) return fail("a reader passed that does not read");
            if (word.position <= position_) return fail("a reader passed by what is kept");
            first_kept_ = word.position;
            return become(State::passed);
        case LogSay::begins:
            if (state_ != State::skipping) return fail("a new beginning that nobody asked for");
            if (word.position < first_kept_) return fail("a beginning before what is kept");
            position_ = word.position;
            return become(State::reading);
        case LogSay::displaced: return become(State::displaced);
        case LogSay::threw:
            if (state_ != State::reading) return fail("a throw of a filter that is not asked");
            thrown_at_ = word.position;
            chosen_.threw = std::max<std::uint64_t>(chosen_.threw, 1);
            take_text(rest.subspan(sizeof facts));
            return become(facts.sequence != 0 ? State::stopped : State::reading);
        case LogSay::items:
        case LogSay::chosen: break;
    }
    return fail("a word that no log says");
}

LogFollower::Heard LogFollower::take_chosen(const LogWord& word,
                                            std::span<const std::byte> rest) noexcept {
    if (state_ != State::reading) return fail("items that nobody waits for");
    if (word.position != position_) return fail("items out of their order");
    LogChosenHead head;
    if (rest.size() < sizeof head) return fail("a part of an item");
    std::memcpy(&head, rest.data(), sizeof head);
    if (head.next < word.position || head.next > LogWord::most_position ||
        head.threw < chosen_.threw) {
        return fail("items that end before they begin");
    }
    chosen_ = head;
    chosen_begin_ = chosen_at_ = word.position;
    items_ = rest.subspan(sizeof head);
    return Heard::chosen;
}

std::optional<LogFollower::Chosen> LogFollower::next_chosen() noexcept {
    if (items_.empty()) return std::nullopt;
    Chosen chosen;
    LogChosenRecord record;
    if (!log_record_at(items_, chosen.item)) {
        (void)fail("a part of an item");
        return std::nullopt;
    }
    std::memcpy(&record, items_.data(), sizeof record);
    chosen.position = chosen_begin_ + record.after;
    const std::size_t bytes = log_record_bytes(record.length);
    if (chosen.position < chosen_at_ || chosen.position >= chosen_.next ||
        (!shape_.is_framed() && record.length != shape_.item_size)) {
        (void)fail("an item that nobody asked for");
        return std::nullopt;
    }
    chosen.record = items_.first(bytes);
    chosen_at_ = chosen.position + 1;
    items_ = items_.subspan(bytes);
    return chosen;
}

void LogFollower::take_text(std::span<const std::byte> text) noexcept {
    try {
        text_.assign(reinterpret_cast<const char*>(text.data()), text.size());
        // Another end's: whatever it likes to say.
        std::ranges::replace_if(
            text_, [](char letter) { return letter < ' ' || letter > '~'; }, '?');
    } catch (const std::exception&) {  // out of memory
        text_.clear();
    }
}

}  // namespace millrace::flow::detail
