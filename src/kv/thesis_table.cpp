// The table of work 002, section 3.1.3: 1,024 buckets, each a linked list with a lock. It never
// grows, so a look takes time in proportion to the items.
#include <array>
#include <mutex>
#include <new>

#include "table.hpp"

namespace millrace::kv {
namespace {

class ThesisTable final : public Table {
  public:
    explicit ThesisTable(Budget& budget) : budget_{budget} {
        if (!budget_.take(sizeof *this)) throw std::bad_alloc{};
    }
    ~ThesisTable() override { budget_.give(sizeof *this); }

    void look(std::uint64_t hash, Look look) const override {
        const Bucket& bucket = buckets_[hash % buckets];
        const std::lock_guard lock{bucket.mutex};
        if (bucket.head != nullptr) look(bucket.head);
    }
    void change(std::uint64_t hash, Change change) noexcept override {
        Bucket& bucket = buckets_[hash % buckets];
        const std::lock_guard lock{bucket.mutex};
        if (bucket.head != nullptr) change(bucket.head);
    }
    bool insert(std::uint64_t hash, Change change) noexcept override {
        Bucket& bucket = buckets_[hash % buckets];
        const std::lock_guard lock{bucket.mutex};
        change(bucket.head);
        return true;
    }
    void prefetch(std::uint64_t hash) const noexcept override {
        __builtin_prefetch(&buckets_[hash % buckets]);
    }
    Room make_room(std::uint64_t, bool) noexcept override { return Room::there; }

  private:
    static constexpr std::size_t buckets = 1024;
    struct alignas(64) Bucket {
        mutable std::mutex mutex;
        Item* head = nullptr;
    };

    Budget& budget_;
    std::array<Bucket, buckets> buckets_;
};

}  // namespace

std::unique_ptr<Table> make_thesis_table(Budget& budget) {
    return std::make_unique<ThesisTable>(budget);
}

}  // namespace millrace::kv
