#include "change.hpp"

namespace millrace::kv {

Outcome change(Store& store, std::span<const std::byte> key,
               FunctionRef<Change(const Entry*)> decide, Version* version_then) {
    for (;;) {
        Version version = 0;
        Change wanted;
        const Outcome found = store.get(key, [&](const Entry& entry) {
            version = entry.version;
            wanted = decide(&entry);
        });
        if (found == Outcome::bad_key) return found;
        if (found == Outcome::not_found) wanted = decide(nullptr);
        Outcome outcome = Outcome::ok;
        switch (wanted.kind) {
            case Change::Kind::none: break;
            case Change::Kind::set: {
                const SetResult result =
                    store.set_until(key, wanted.value, wanted.expires_at, version, wanted.note);
                outcome = result.outcome;
                version = result.version;
                break;
            }
            case Change::Kind::erase:
                outcome = store.erase(key, version);
                // It was there a moment ago: somebody else has removed it.
                if (outcome == Outcome::not_found) outcome = Outcome::conflict;
                version = 0;
                break;
        }
        if (outcome == Outcome::conflict) continue;
        if (version_then != nullptr) *version_then = version;
        return outcome;
    }
}

}  // namespace millrace::kv
