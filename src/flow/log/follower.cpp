// The reader's side of what is said between a log and a reader, see the header.
#include "log/follower.hpp"

namespace millrace::flow::detail {

LogFollower::Heard LogFollower::take_word(const LogWord& word,
                                          std::span<const std::byte> rest) noexcept {
    if (rest.size() != sizeof(LogFacts)) return fail("a word without its facts");
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
        case LogSay::items: break;
    }
    return fail("a word that no log says");
}

}  // namespace millrace::flow::detail
