// A filter that says when it is at work, in memory that outlives its process: for tests that kill a
// process while it filters.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace millrace::flow::test {

/// A word in a file, which several processes see: how many filters are at work.
class FilterWatch {
  public:
    explicit FilterWatch(const std::string& path) {
        const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        EXPECT_EQ(ftruncate(file, bytes), 0);
        void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        EXPECT_NE(at, MAP_FAILED);
        word_ = static_cast<std::atomic<std::uint32_t>*>(at);
        ::close(file);
    }
    FilterWatch(const FilterWatch&) = delete;
    FilterWatch& operator=(const FilterWatch&) = delete;
    ~FilterWatch() { munmap(word_, bytes); }

    [[nodiscard]] bool is_at_work() const { return word_->load() != 0; }
    /// Of a process that was killed: in the middle of its filter. Answers once for each.
    [[nodiscard]] bool was_at_work() const { return word_->exchange(0) != 0; }
    void begin() const { word_->store(1); }
    void end() const { word_->store(0); }

  private:
    static constexpr std::size_t bytes = 4096;
    std::atomic<std::uint32_t>* word_;
};

/// Of this process.
inline const FilterWatch* filter_watch = nullptr;

/// Keeps each third item, and takes longer than all else that is done for it.
struct SlowThird {
    std::uint64_t remainder = 0;
    template <class T>
    bool operator()(const T& item) const {
        if (filter_watch != nullptr) filter_watch->begin();
        for (int i = 0; i != 20'000; ++i) asm volatile("" : : : "memory");
        if (filter_watch != nullptr) filter_watch->end();
        return item.number % 3 == remainder;
    }
};

}  // namespace millrace::flow::test
