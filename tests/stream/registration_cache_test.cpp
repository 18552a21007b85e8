// Registrations of plain memory that are kept, and what they are worth when mappings change.
#include "millrace/stream/registration_cache.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "pair.hpp"

namespace millrace::stream {
namespace {

using base::Status;

constexpr std::size_t length = 1 << 20;

/// A mapping of a file that cannot shrink. Of such memory a registration on the soft device is of
/// the file, as one on a NIC is of the pages: not of what is mapped there later.
class Mapping {
  public:
    Mapping() : data_{map(nullptr, 0)} { EXPECT_NE(data_, nullptr); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() { munmap(data_, length); }

    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, length}; }
    /// Another file at the same address, which no other mapping can take meanwhile.
    void replace() { EXPECT_EQ(map(data_, MAP_FIXED), data_); }
    /// Moves it elsewhere; where it was, nothing is.
    void move() {
        std::byte* const was = data_;
        void* const to = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_EQ(mremap(was, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
        data_ = static_cast<std::byte*>(to);
    }

  private:
    static std::byte* map(std::byte* at, int flags) {
        const int file = memfd_create("stream test", MFD_ALLOW_SEALING);
        EXPECT_EQ(ftruncate(file, length), 0);
        EXPECT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        void* const memory = mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0);
        ::close(file);
        return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
    }
    std::byte* data_;
};

class StreamRegistrations : public testing::Test {
  protected:
    explicit StreamRegistrations(RegistrationCacheOptions chosen = {.receives = true})
        : cache{std::make_shared<RegistrationCache>(chosen)}, pair{with(cache)} {}
    static SocketOptions with(std::shared_ptr<RegistrationCache> cache) {
        SocketOptions options = in_mode(Mode::direct);
        options.registrations = std::move(cache);
        return options;
    }
    /// `from` to `into`, which is checked.
    void transfer(std::span<std::byte> from, std::span<std::byte> into) {
        ++seed;
        fill(from, 0, seed);
        std::fill(into.begin(), into.end(), std::byte{0xee});
        ASSERT_EQ(pair.far->receive(into, seed, ReceiveFlags::wait_all), Status::ok);
        ASSERT_EQ(pair.near->send(std::span<const std::byte>{from}, seed), Status::ok);
        Completion done;
        std::uint64_t ended = 0;
        while (ended < 2) {
            for (Socket* const socket : {&*pair.near, &*pair.far}) {
                if (socket->poll(done) != Status::ok) continue;
                ++ended;
                ASSERT_EQ(done.status, Status::ok) << socket->failure();
                ASSERT_EQ(done.bytes, from.size());
            }
        }
        EXPECT_TRUE(is_right(into, 0, seed));
    }
    [[nodiscard]] std::uint64_t made() {
        return pair.near->stats().registrations + pair.far->stats().registrations;
    }
    [[nodiscard]] std::uint64_t kept() {
        return pair.near->stats().registrations_kept + pair.far->stats().registrations_kept;
    }

    std::shared_ptr<RegistrationCache> cache;
    Pair pair;
    std::uint64_t seed = 0;
};

TEST_F(StreamRegistrations, AreMadeOnceForTheSameMemory) {
    Bytes from(length);
    Bytes into(length);
    for (int i = 0; i < 3; ++i) transfer(from, into);
    transfer(std::span{from}.subspan(13, 500'000), std::span{into}.subspan(7, 500'000));
    EXPECT_EQ(made(), 2U);
    EXPECT_EQ(kept(), 6U);
    EXPECT_EQ(cache->stats().regions, 2U);
    EXPECT_EQ(cache->stats().hits, 6U);
    EXPECT_EQ(cache->stats().misses, 2U);
    EXPECT_EQ(cache->clear(), 2U);
    EXPECT_EQ(cache->stats().bytes, 0U);
    transfer(from, into);
    EXPECT_EQ(made(), 4U);
}

TEST_F(StreamRegistrations, OfMemoryThatIsMappedAnewAreForgottenBeforeAndMadeAgain) {
    Mapping from;
    Mapping into;
    transfer(from.bytes(), into.bytes());
    for (Mapping* const mapping : {&from, &into}) {
        EXPECT_EQ(cache->forget(mapping->bytes()), 1U);
        mapping->replace();
    }
    transfer(from.bytes(), into.bytes());
    EXPECT_EQ(made(), 4U);
}

TEST_F(StreamRegistrations, OfMemoryThatIsMovedAreForgottenBeforeAndMadeAgain) {
    Mapping from;
    Mapping into;
    transfer(from.bytes(), into.bytes());
    for (Mapping* const mapping : {&from, &into}) {
        std::byte* const at = mapping->bytes().data();
        EXPECT_EQ(cache->forget(mapping->bytes()), 1U);
        mapping->move();
        EXPECT_NE(mapping->bytes().data(), at);
    }
    transfer(from.bytes(), into.bytes());
    EXPECT_EQ(made(), 4U);
}

TEST_F(StreamRegistrations, StandWhileAChildHasACopyOfTheMemory) {
    Bytes from(length);
    Bytes into(length);
    transfer(from, into);
    int to_child[2];
    ASSERT_EQ(pipe(to_child), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        // Writes to its own copies, and lives as long as its parent wants.
        std::byte* const own = from.data();
        own[0] = own[length - 1] = into.data()[5] = std::byte{0x77};
        char byte = 0;
        ::close(to_child[1]);
        _exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::close(to_child[0]);
    for (int i = 0; i < 2; ++i) transfer(from, into);
    ::close(to_child[1]);
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    transfer(from, into);
    EXPECT_EQ(made(), 2U);
}

TEST_F(StreamRegistrations, AreForgottenByPages) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    Mapping memory;
    const auto bytes = memory.bytes();
    transfer(bytes.subspan(100, 100'000), bytes.last(100'000));
    EXPECT_EQ(cache->forget(bytes.subspan(50 * page, page)), 0U) << "nobody used that";
    EXPECT_EQ(cache->forget({}), 0U);
    EXPECT_EQ(cache->forget(bytes.first(1)), 1U) << "of the same page";
    EXPECT_EQ(cache->forget(bytes.last(1)), 1U);
}

TEST_F(StreamRegistrations, ThatAreForgottenStandForOperationsUnderWay) {
    Bytes from(length);
    Bytes into(length);
    ASSERT_EQ(pair.far->receive(into, 1, ReceiveFlags::wait_all), Status::ok);
    EXPECT_EQ(cache->forget(into), 1U);
    cache.reset();
    fill(from, 0, 9);
    ASSERT_EQ(pair.near->send(from, 1), Status::ok);
    Completion done;
    while (pair.far->poll(done) != Status::ok) (void)pair.near->poll(done);
    EXPECT_EQ(done.status, Status::ok) << pair.far->failure();
    EXPECT_TRUE(is_right(into, 0, 9));
}

class FewStreamRegistrations : public StreamRegistrations {
  protected:
    FewStreamRegistrations()
        : StreamRegistrations{{.most_regions = 2, .most_bytes = length, .receives = false}} {}
};

TEST_F(FewStreamRegistrations, AreNoMoreThanWasSaidAndNotOfReceives) {
    Bytes from(length + 1);
    Bytes into(length + 1);
    const auto part = [](Bytes& bytes, std::size_t number) {
        return std::span{bytes}.subspan(number * 200'000, 200'000);
    };
    transfer(part(from, 0), part(into, 0));
    transfer(part(from, 1), part(into, 1));
    transfer(part(from, 0), part(into, 0));
    EXPECT_EQ(pair.far->stats().registrations, 3U);
    EXPECT_EQ(pair.near->stats().registrations, 2U);
    EXPECT_EQ(cache->stats().regions, 2U);
    transfer(part(from, 2), part(into, 2));  // in place of the second, which is older
    transfer(part(from, 0), part(into, 0));
    EXPECT_EQ(pair.near->stats().registrations, 3U);
    EXPECT_EQ(cache->stats().evictions, 1U);
    transfer(std::span{from}.first(length), std::span{into}.first(length));
    EXPECT_EQ(cache->stats().regions, 1U);
    transfer(from, into);  // more than may be kept at all
    EXPECT_EQ(cache->stats().regions, 1U);
    EXPECT_EQ(cache->stats().bytes, length);
}

TEST(StreamRegistrationCaches, AreOfTheSocketsEndpoint) {
    SocketOptions options;
    options.endpoint = connect::Endpoint::shared()->with_own_domain();
    options.registrations = std::make_shared<RegistrationCache>();
    try {
        (void)Listener::listen(unused_address(), options);
        FAIL() << "it was accepted";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_THAT(error.what(), testing::HasSubstr("of another endpoint"));
    }
}

TEST(StreamRegistrationCaches, ServeSeveralThreads) {
    const auto cache = std::make_shared<RegistrationCache>(
        RegistrationCacheOptions{.most_regions = 3, .receives = true});
    SocketOptions options = in_mode(Mode::direct);
    options.registrations = cache;
    const auto talk = [&](std::uint64_t seed) {
        Pair pair{options};
        Bytes from(4 * length);
        std::thread sender{[&] {
            fill(from, 0, seed);
            for (std::uint64_t i = 0; i < 20; ++i) {
                const auto part = std::span{from}.subspan(i % 4 * length, length);
                ASSERT_EQ(pair.near->send(part, i), Status::ok);
                ASSERT_EQ(next(*pair.near, i).status, Status::ok) << pair.near->failure();
            }
        }};
        Bytes into(length);
        for (std::uint64_t i = 0; i < 20; ++i) {
            ASSERT_EQ(pair.far->receive(into, i, ReceiveFlags::wait_all), Status::ok);
            ASSERT_EQ(next(*pair.far, i).status, Status::ok) << pair.far->failure();
            ASSERT_TRUE(is_right(into, i % 4 * length, seed));
            if (i % 7 == 3) cache->forget(into);
        }
        sender.join();
    };
    std::thread other{[&] { talk(5); }};
    talk(6);
    other.join();
    EXPECT_LE(cache->stats().regions, 3U);
}

}  // namespace
}  // namespace millrace::stream
