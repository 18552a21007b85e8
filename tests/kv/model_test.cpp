// Random calls, compared one by one with a map; with good hashes and with hashes that collide.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <string>

#include "stores.hpp"

namespace millrace::kv {
namespace {

struct Kept {
    std::string value;
    Version version = 0;
    bool expires = false;
};

class Model {
  public:
    Model(TableKind table, HashFunction hash) : engine_{options_of(table), hash} {}

    void step() {
        const std::string key(*rc::gen::inRange<std::size_t>(1, 5),
                              static_cast<char>('a' + *rc::gen::inRange(0, 10)));
        switch (*rc::gen::weightedElement<int>(
            {{8, 0}, {4, 1}, {3, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6}})) {
            case 0: return set(key);
            case 1: return get(key);
            case 2: return erase(key);
            case 3: return walk();
            case 4: return sweep();
            case 5: return clear();
            default: RC_ASSERT(engine_.exists(view(key)) == kept_.contains(key));
        }
    }
    void end() {
        walk();
        engine_.sweep(~std::size_t{0});
        RC_ASSERT(engine_.stats().items == kept_.size());
        std::uint64_t bytes = 0;
        for (const auto& [key, item] : kept_) bytes += key.size() + item.value.size();
        RC_ASSERT(engine_.stats().item_bytes == bytes);
    }

  private:
    [[nodiscard]] Version version_of(const std::string& key) const {
        const auto found = kept_.find(key);
        return found == kept_.end() ? 0 : found->second.version;
    }
    /// Right, none, or wrong.
    [[nodiscard]] std::optional<Version> condition(const std::string& key) const {
        switch (*rc::gen::inRange(0, 5)) {
            case 0: return version_of(key);
            case 1: return 0;
            case 2: return last_ + 1;
            default: return std::nullopt;
        }
    }
    void set(const std::string& key) {
        const Bytes value = derived(++values_, *rc::gen::inRange<std::size_t>(0, 6000));
        SetOptions options{.if_version = condition(key), .expires_after = {}};
        const int expiry = *rc::gen::inRange(0, 4);
        if (expiry == 0) options.expires_after = no_time;
        if (expiry == 1) options.expires_after = long_time;
        const SetResult result = engine_.set(view(key), value, options);
        if (options.if_version && *options.if_version != version_of(key)) {
            RC_ASSERT(result.outcome == Outcome::conflict);
            RC_ASSERT(result.version == version_of(key));
            return;
        }
        RC_ASSERT(result.outcome == Outcome::ok);
        RC_ASSERT(result.version > last_);
        last_ = result.version;
        kept_.erase(key);
        if (expiry != 0) kept_[key] = {text(value), result.version, expiry == 1};
    }
    void get(const std::string& key) {
        std::optional<std::string> got;
        const Outcome outcome = engine_.find(view(key), [&](const Entry& entry) {
            got = text(entry.value);
            RC_ASSERT(text(entry.key) == key);
            RC_ASSERT(entry.version == version_of(key));
            RC_ASSERT(entry.expires_after.has_value() == kept_.at(key).expires);
        });
        const auto found = kept_.find(key);
        RC_ASSERT((outcome == Outcome::ok) == (found != kept_.end()));
        if (found != kept_.end()) RC_ASSERT(got == found->second.value);
    }
    void erase(const std::string& key) {
        const auto wanted = condition(key);
        const Outcome outcome = engine_.erase(view(key), wanted);
        if (!kept_.contains(key)) {
            RC_ASSERT(outcome == Outcome::not_found);
        } else if (wanted && *wanted != version_of(key)) {
            RC_ASSERT(outcome == Outcome::conflict);
        } else {
            RC_ASSERT(outcome == Outcome::ok);
            kept_.erase(key);
        }
    }
    void walk() {
        std::set<std::string> met;
        engine_.for_each([&](const Entry& entry) {
            const std::string key = text(entry.key);
            RC_ASSERT(met.insert(key).second);
            RC_ASSERT(kept_.contains(key));
            RC_ASSERT(kept_.at(key).value == text(entry.value));
        });
        RC_ASSERT(met.size() == kept_.size());
    }
    void sweep() { engine_.sweep(*rc::gen::inRange<std::size_t>(0, 20)); }
    void clear() {
        engine_.clear();
        kept_.clear();
    }

    Engine engine_;
    std::map<std::string, Kept> kept_;
    Version last_ = 0;
    std::uint64_t values_ = 0;
};

void compare(TableKind table, HashFunction hash) {
    Model model{table, hash};
    const int steps = *rc::gen::inRange(1, 200);
    for (int i = 0; i < steps; ++i) model.step();
    model.end();
}

RC_GTEST_PROP(StoreModel, CuckooDoesWhatAMapDoes, ()) { compare(TableKind::cuckoo, hash_of); }
RC_GTEST_PROP(StoreModel, ThesisDoesWhatAMapDoes, ()) { compare(TableKind::thesis, hash_of); }
RC_GTEST_PROP(StoreModel, CuckooWithCollisionsToo, ()) { compare(TableKind::cuckoo, weak_hash); }
RC_GTEST_PROP(StoreModel, ThesisWithCollisionsToo, ()) { compare(TableKind::thesis, weak_hash); }

}  // namespace
}  // namespace millrace::kv
