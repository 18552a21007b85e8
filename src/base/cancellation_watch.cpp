// The registrations that those who wait for one cancellation in one executor share, see the header.
#include "millrace/base/detail/cancellation_watch.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace millrace::base {

/// All but the table belongs to the executor's thread.
class CancellationWatch::Shared : public std::enable_shared_from_this<Shared> {
  public:
    using Key = std::pair<Executor*, const Cancellation*>;

    /// Null: there is no descriptor for it.
    static std::shared_ptr<Shared> of(Executor& executor, const Cancellation& cancellation) {
        const int descriptor = cancellation.descriptor();
        if (descriptor < 0) return nullptr;
        const Key key{&executor, &cancellation};
        {
            const std::lock_guard lock{mutex};
            if (const auto found = table().find(key); found != table().end()) {
                return found->second->shared_from_this();
            }
        }
        auto made = std::make_shared<Shared>(key);
        made->id_ = executor.add(descriptor, [shared = made.get()] { shared->readable(); });
        const std::lock_guard lock{mutex};
        table().emplace(key, made.get());
        return made;
    }
    explicit Shared(const Key& key) noexcept : key_{key} {}

    void add(CancellationWatch& watch) noexcept {
        watch.before_ = std::exchange(last_, &watch);
        (watch.before_ != nullptr ? watch.before_->behind_ : first_) = &watch;
    }
    void remove(CancellationWatch& watch) noexcept {
        CancellationWatch* const before = std::exchange(watch.before_, nullptr);
        CancellationWatch* const behind = std::exchange(watch.behind_, nullptr);
        (before != nullptr ? before->behind_ : first_) = behind;
        (behind != nullptr ? behind->before_ : last_) = before;
        if (first_ != nullptr) return;
        {
            const std::lock_guard lock{mutex};
            table().erase(key_);
        }
        (void)key_.first->remove(id_);
    }

  private:
    void readable() {
        const auto alive = shared_from_this();
        // Whoever is told may begin to wait again, which a request that stands does not let it.
        while (first_ != nullptr && key_.second->requested()) {
            const auto told = std::exchange(first_->told_, nullptr);
            first_->end();
            told();
        }
        // Without those who waited, the cancellation may be gone.
        if (first_ != nullptr) key_.second->settle();
    }

    /// Never destroyed: static objects may wait while others go.
    static std::map<Key, Shared*>& table() {
        static auto* const the_one = new std::map<Key, Shared*>;
        return *the_one;
    }
    static inline std::mutex mutex;

    Key key_;
    Executor::Id id_{};
    CancellationWatch* first_ = nullptr;
    CancellationWatch* last_ = nullptr;
};

bool CancellationWatch::begin(Executor& executor, const Cancellation& cancellation,
                              std::function<void()> told) {
    end();
    auto shared = Shared::of(executor, cancellation);
    if (shared == nullptr) return false;
    told_ = std::move(told);
    shared_ = std::move(shared);
    shared_->add(*this);
    return true;
}

void CancellationWatch::end() noexcept {
    if (const auto shared = std::exchange(shared_, nullptr)) shared->remove(*this);
}

}  // namespace millrace::base
