// Buffers: what becomes of operations whose Buffer goes before they have completed, and operations
// of more than 4 GiB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "pair.hpp"

namespace millrace::stream {
namespace {

using base::Status;

class StreamBuffers : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamBuffers,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

/// Bytes go both ways, and are right.
void expect_that_it_goes_on(Pair& pair) {
    const Bytes words = pattern(5'000, 9);
    Bytes into(5'000);
    for (const bool back : {false, true}) {
        std::thread other{[&] {
            EXPECT_EQ((back ? pair.far : pair.near)->write_all(words, patience()), Status::ok);
        }};
        for (std::size_t have = 0; have < into.size();) {
            std::size_t size = 0;
            ASSERT_EQ((back ? pair.near : pair.far)
                          ->read_some(std::span{into}.subspan(have), size, patience()),
                      Status::ok);
            have += size;
        }
        other.join();
        EXPECT_EQ(into, words);
    }
}

TEST_P(StreamBuffers, ThatGoAreSentToTheEnd) {
    Pair pair{in_mode(GetParam())};
    constexpr std::size_t length = 300'000;  // more than the ring, so that much of it goes later
    std::optional<Buffer> from{length};
    fill(from->bytes().first(length), 0, 3);
    ASSERT_EQ(pair.near->send(from->slice(0, length), 1), Status::ok);
    const std::weak_ptr<const void> registration = from->slice().hold();
    from.reset();
    EXPECT_FALSE(registration.expired()) << "the send needs it";
    Buffer into{length};
    ASSERT_EQ(pair.far->receive(into.slice(0, length), 2, ReceiveFlags::wait_all), Status::ok);
    std::thread sender{[&] { EXPECT_EQ(next(*pair.near, 1).status, Status::ok); }};
    EXPECT_EQ(next(*pair.far, 2).bytes, length);
    sender.join();
    EXPECT_TRUE(is_right(into.bytes().first(length), 0, 3));
    EXPECT_TRUE(registration.expired()) << "nobody needs it";
    expect_that_it_goes_on(pair);
}

TEST_P(StreamBuffers, ThatGoWhileTheyAreAdvertisedAreFilled) {
    Pair pair{in_mode(GetParam())};
    constexpr std::size_t length = 100'000;
    Bytes memory(length);
    std::optional<Buffer> registered{std::span{memory}};
    ASSERT_EQ(pair.far->receive(registered->slice(), 1, ReceiveFlags::wait_all), Status::ok);
    const std::weak_ptr<const void> registration = registered->slice().hold();
    registered.reset();
    EXPECT_FALSE(registration.expired()) << "the receive needs it";
    const Bytes from = pattern(length, 4);
    std::thread sender{[&] { EXPECT_EQ(pair.near->write_all(from, patience()), Status::ok); }};
    const Completion done = next(*pair.far, 1);
    sender.join();
    EXPECT_EQ(done.status, Status::ok);
    EXPECT_EQ(done.bytes, length);
    EXPECT_EQ(memory, from);
    EXPECT_TRUE(registration.expired()) << "nobody needs it";
    expect_that_it_goes_on(pair);
}

// Whatever is written to memory that is the Buffer's own is written to nobody else's.
TEST_P(StreamBuffers, OfTheirOwnMemoryKeepItAsLongAsTheirReceives) {
    Pair pair{in_mode(GetParam())};
    constexpr std::size_t length = 100'000;
    for (std::uint64_t id = 0; id < 3; ++id) {
        const Buffer into{length};
        ASSERT_EQ(pair.far->receive(into.slice(0, length), id, ReceiveFlags::wait_all), Status::ok);
    }
    const Bytes from = pattern(3 * length, 4);
    std::thread sender{[&] { EXPECT_EQ(pair.near->write_all(from, patience()), Status::ok); }};
    for (std::uint64_t id = 0; id < 3; ++id) EXPECT_EQ(next(*pair.far, id).bytes, length);
    sender.join();
    expect_that_it_goes_on(pair);
}

TEST_P(StreamBuffers, OfASocketThatGoesGoWithIt) {
    std::optional<Pair> pair{in_mode(GetParam())};
    std::optional<Buffer> buffer{100'000};
    ASSERT_EQ(pair->far->receive(buffer->slice(), 1), Status::ok);
    const std::weak_ptr<const void> registration = buffer->slice().hold();
    buffer.reset();
    EXPECT_FALSE(registration.expired());
    pair.reset();
    EXPECT_TRUE(registration.expired());
}

// --- more than 4 GiB, of which next to nothing is there

/// Address space whose pages are there once they are used.
class Expanse {
  public:
    explicit Expanse(std::size_t bytes)
        : bytes_{bytes},
          memory_{::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)} {}
    Expanse(const Expanse&) = delete;
    Expanse& operator=(const Expanse&) = delete;
    ~Expanse() {
        if (is_there()) ::munmap(memory_, bytes_);
    }
    [[nodiscard]] bool is_there() const noexcept { return memory_ != MAP_FAILED; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept {
        return {static_cast<std::byte*>(memory_), bytes_};
    }

  private:
    std::size_t bytes_;
    void* memory_;
};

constexpr std::size_t beyond_words = (std::size_t{1} << 32) + 12'345;

class StreamExpanses : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(In, StreamExpanses,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

TEST_P(StreamExpanses, AReceiveOfMoreThan4GiBTakesWhatComes) {
    const Expanse expanse{beyond_words};
    if (!expanse.is_there()) GTEST_SKIP() << "there is not so much address space";
    Pair pair{in_mode(GetParam())};
    ASSERT_EQ(pair.far->receive(expanse.bytes(), 1, ReceiveFlags::wait_all), Status::ok);
    const Bytes from = pattern(200'000, 6);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->write_all(from, patience()), Status::ok);
        pair.near->shut_down();
    }};
    const Completion done = next(*pair.far, 1);
    sender.join();
    EXPECT_EQ(done.status, Status::ok);
    EXPECT_EQ(done.bytes, from.size());
    EXPECT_TRUE(is_right(expanse.bytes().first(from.size()), 0, 6));
}

// The receiver takes some of it, and loses interest: the rest need not be read.
TEST_P(StreamExpanses, ASendOfMoreThan4GiBBeginsAndIsGivenUp) {
    const Expanse expanse{beyond_words};
    if (!expanse.is_there()) GTEST_SKIP() << "there is not so much address space";
    constexpr std::size_t taken = 150'000;
    fill(expanse.bytes().first(taken), 0, 8);
    Pair pair{in_mode(GetParam())};
    Buffer into{taken};
    ASSERT_EQ(pair.far->receive(into.slice(0, taken), 2, ReceiveFlags::wait_all), Status::ok);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(std::span<const std::byte>{expanse.bytes()}, 1), Status::ok);
        const Completion done = next(*pair.near, 1);
        EXPECT_NE(done.status, Status::ok);
        EXPECT_EQ(done.bytes, 0U);
    }};
    EXPECT_EQ(next(*pair.far, 2).bytes, taken);
    EXPECT_TRUE(is_right(into.bytes().first(taken), 0, 8));
    pair.far.reset();
    sender.join();
}

/// As much address space as wanted, of two MiB of memory that are there again and again.
class Echoing {
  public:
    static constexpr std::size_t period = 2 << 20;

    explicit Echoing(std::size_t bytes) : expanse_{(bytes + period - 1) / period * period} {
        if (!expanse_.is_there()) return;
        const int memory = ::memfd_create("millrace-stream-test", MFD_CLOEXEC);
        if (memory < 0 || ::ftruncate(memory, period) != 0) return;
        is_there_ = true;
        // Populated: two million page faults one by one take seconds.
        for (std::size_t at = 0; at < expanse_.bytes().size(); at += period) {
            is_there_ =
                is_there_ && ::mmap(expanse_.bytes().data() + at, period, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_FIXED | MAP_POPULATE, memory, 0) != MAP_FAILED;
        }
        ::close(memory);
    }
    [[nodiscard]] bool is_there() const noexcept { return is_there_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return expanse_.bytes(); }

  private:
    Expanse expanse_;
    bool is_there_ = false;
};

// Every length and place on the way has more than 32 bits. (One mode, as 4 GiB take their time.)
TEST(StreamExpanse, MoreThan4GiBGoInOneSendToOneReceive) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer keeps four bytes of each that is touched";
#endif
    const Echoing from{beyond_words};
    const Echoing into{beyond_words};
    if (!from.is_there() || !into.is_there()) GTEST_SKIP() << "there is not so much address space";
    fill(from.bytes().first(Echoing::period), 0, 8);
    Pair pair{in_mode(Mode::dynamic)};
    ASSERT_EQ(pair.far->receive(into.bytes().first(beyond_words), 2, ReceiveFlags::wait_all),
              Status::ok);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(std::span<const std::byte>{from.bytes()}.first(beyond_words), 1),
                  Status::ok);
        const Completion done = next(*pair.near, 1);
        EXPECT_EQ(done.status, Status::ok) << pair.near->failure();
        EXPECT_EQ(done.bytes, beyond_words);
    }};
    const Completion done = next(*pair.far, 2);
    sender.join();
    EXPECT_EQ(done.status, Status::ok) << pair.far->failure();
    EXPECT_EQ(done.bytes, beyond_words);
    EXPECT_TRUE(is_right(into.bytes().first(Echoing::period), 0, 8));
    const SocketStats stats = pair.near->stats();
    EXPECT_EQ(stats.direct_bytes_sent + stats.indirect_bytes_sent, beyond_words);
}

}  // namespace
}  // namespace millrace::stream
