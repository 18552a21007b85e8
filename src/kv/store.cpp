#include "millrace/kv/store.hpp"

#include "engine.hpp"

namespace millrace::kv {

struct Store::State {
    Engine engine;
};

Store::Store(const StoreOptions& options) : state_{new State{Engine{options}}} {}
Store::~Store() = default;

Outcome Store::get(std::span<const std::byte> key, FunctionRef<void(const Entry&)> take) {
    return state_->engine.find(key, take);
}
void Store::get_several(std::span<const std::span<const std::byte>> keys,
                        FunctionRef<void(std::size_t, Outcome, const Entry&)> take) {
    state_->engine.find_several(keys, take);
}
SetResult Store::set(std::span<const std::byte> key, std::span<const std::byte> value,
                     const SetOptions& options) noexcept {
    return state_->engine.set(key, value, options);
}
SetResult Store::set_until(std::span<const std::byte> key, std::span<const std::byte> value,
                           std::optional<base::Clock::time_point> expires_at,
                           std::optional<Version> if_version, std::uint64_t note) noexcept {
    return state_->engine.set_until(key, value, expires_at, if_version, note);
}
Outcome Store::erase(std::span<const std::byte> key, std::optional<Version> if_version) noexcept {
    return state_->engine.erase(key, if_version);
}
bool Store::exists(std::span<const std::byte> key) const noexcept {
    return state_->engine.exists(key);
}
void Store::prefetch(std::span<const std::byte> key) const noexcept {
    state_->engine.prefetch(key);
}
void Store::clear() noexcept { state_->engine.clear(); }
Cursor Store::visit_from(Cursor from, const std::function<bool(const Entry&)>& visit) const {
    return state_->engine.visit_from(from, visit);
}
void Store::for_each(const std::function<void(const Entry&)>& visit) const {
    state_->engine.for_each(visit);
}
bool Store::pick(std::uint64_t random, const std::function<void(const Entry&)>& take) const {
    return state_->engine.pick(random, take);
}
Store::Moment Store::moment() const noexcept { return state_->engine.moment(); }
std::size_t Store::sweep(std::size_t budget) noexcept { return state_->engine.sweep(budget); }
StoreStats Store::stats() const noexcept { return state_->engine.stats(); }
const StoreOptions& Store::options() const noexcept { return state_->engine.options(); }

}  // namespace millrace::kv
