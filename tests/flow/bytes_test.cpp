// Flow queues of framed bytes, both ends in one process.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/ring/detail/first_position.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::Ends;
using Frame = std::vector<std::byte>;

Frame make_frame(std::size_t size, std::uint64_t seed) {
    Frame frame(size);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
    for (std::byte& byte : frame) {
        state = state * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(state >> 56);
    }
    return frame;
}

struct BytesDesign1 {
    static constexpr ring::Design value = ring::design_1;
};
struct BytesDesign2 {
    static constexpr ring::Design value = ring::design_2;
};
template <class DesignOf>
class ByteQueue : public testing::Test {};
using BytesDesigns = testing::Types<BytesDesign1, BytesDesign2>;
TYPED_TEST_SUITE(ByteQueue, BytesDesigns);

TYPED_TEST(ByteQueue, CarriesEverySizeUpToTheLargest) {
    for (const std::uint64_t capacity : {48, 56, 64, 104, 256}) {
        Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = capacity}}};
        const std::uint64_t most = ends.producer().max_size();
        ASSERT_EQ(most, ends.consumer().max_size());
        for (std::uint64_t size = 0; size <= most; ++size) {
            const Frame frame = make_frame(size, size);
            ASSERT_EQ(ends.producer().enqueue(frame, Deadline::after(40s)), Status::ok);
            Frame out;
            ASSERT_EQ(ends.take(out), Status::ok);
            ASSERT_EQ(out, frame);
        }
    }
}

TYPED_TEST(ByteQueue, CarriesTheLargestFrameFromEveryOffset) {
    for (const std::uint64_t capacity : {48, 72, 160}) {
        for (std::uint64_t first = 0; first <= capacity / 8 + 2; ++first) {
            Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = capacity}}};
            const std::uint64_t most = ends.producer().max_size();
            for (std::uint64_t i = 0; i < 3 * first; ++i) {
                const Frame frame = make_frame(i % (most + 1), i);
                ASSERT_EQ(ends.producer().enqueue(frame, Deadline::after(40s)), Status::ok);
                Frame out;
                ASSERT_EQ(ends.take(out), Status::ok);
                ASSERT_EQ(out, frame);
            }
            for (std::uint64_t i = 0; i < 6; ++i) {
                const Frame frame = make_frame(most, i + 1000);
                ASSERT_EQ(ends.producer().enqueue(frame, Deadline::after(40s)), Status::ok);
                Frame out;
                ASSERT_EQ(ends.take(out), Status::ok);
                ASSERT_EQ(out, frame);
            }
        }
    }
}

TYPED_TEST(ByteQueue, SaysTooLargeForWhatCanNeverFit) {
    Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = 128}}};
    const Frame frame = make_frame(ends.producer().max_size() + 1, 1);
    EXPECT_EQ(ends.producer().try_enqueue(frame), Status::too_large);
    std::span<std::byte> place;
    EXPECT_EQ(ends.producer().claim(frame.size(), place), Status::too_large);
    EXPECT_EQ(ends.producer().claim(~std::size_t{0}, place), Status::too_large);
    Frame out;
    EXPECT_EQ(ends.consumer().try_dequeue(out), Status::empty);
}

TYPED_TEST(ByteQueue, KeepsAFrameThatIsTooLargeForTheCallersBuffer) {
    Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = 256}}};
    const Frame frame = make_frame(50, 1);
    ASSERT_EQ(ends.producer().try_enqueue(frame), Status::ok);
    std::vector<std::byte> small(49);
    std::size_t size = 0;
    EXPECT_EQ(ends.consumer().dequeue(small, size, Deadline::after(40s)), Status::too_large);
    EXPECT_EQ(size, 50U);
    std::vector<std::byte> enough(64);
    ASSERT_EQ(ends.consumer().try_dequeue(enough, size), Status::ok);
    ASSERT_EQ(size, 50U);
    EXPECT_EQ(std::memcmp(enough.data(), frame.data(), size), 0);
}

TYPED_TEST(ByteQueue, SendsOnlyTheCommittedPartOfAClaim) {
    Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = 400}}};
    for (std::uint64_t i = 0; i < 40; ++i) {
        std::span<std::byte> place;
        ASSERT_EQ(ends.producer().claim(80, place, Deadline::after(40s)), Status::ok);
        ASSERT_EQ(place.size(), 80U);
        const Frame frame = make_frame(i * 2, i);
        if (!frame.empty()) std::memcpy(place.data(), frame.data(), frame.size());
        ASSERT_EQ(ends.producer().commit(frame.size()), Status::ok);
        std::span<const std::byte> item;
        ASSERT_EQ(ends.peek(item), Status::ok);
        ASSERT_EQ(Frame(item.begin(), item.end()), frame);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(item.data()) % 8, 0U);
        ends.consumer().release();
    }
}

TYPED_TEST(ByteQueue, IsNotMisledByPayloadThatLooksLikeItsOwnWords) {
    // Every word of the payload is what the ring itself held: frames of former positions.
    Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = 512}}};
    Frame echo = make_frame(160, 1);
    for (std::uint64_t i = 0; i < 2000; ++i) {
        const std::size_t size = (i * 40) % 176;
        const Frame frame(echo.begin(),
                          echo.begin() + static_cast<std::ptrdiff_t>(std::min(size, echo.size())));
        ASSERT_EQ(ends.producer().enqueue(frame, Deadline::after(40s)), Status::ok);
        std::span<const std::byte> item;
        ASSERT_EQ(ends.peek(item), Status::ok);
        ASSERT_EQ(Frame(item.begin(), item.end()), frame);
        // Header, payload and trailer as they lie, to be the payload of the frames to come.
        const std::size_t padded = (item.size() + 7) / 8 * 8;
        std::vector<std::byte> raw(item.data() - 8, item.data() + padded + 8);
        echo.insert(echo.begin(), raw.begin(), raw.end());
        echo.resize(160);
        ends.consumer().release();
        Frame none;
        ASSERT_EQ(ends.consumer().try_dequeue(none), Status::empty);
    }
}

TYPED_TEST(ByteQueue, BehavesAsAPlainQueueUnderRandomInterleavings) {
    const bool held = rc::check([] {
        const auto capacity = *rc::gen::inRange<std::uint64_t>(48, 400);
        const auto initial = *rc::gen::element<std::uint64_t>(0, (std::uint64_t{1} << 32) - 320,
                                                              std::uint64_t{0} - 320);
        const auto parts = *rc::gen::element<std::uint32_t>(1, 8, 1024);
        const ring::detail::FirstPosition begins{initial};
        Ends<Bytes, TypeParam::value> ends{
            Options{.ring = {.capacity = capacity, .credit_parts = parts}}};
        const std::uint64_t most = ends.producer().max_size();
        std::deque<Frame> model;
        std::uint64_t next = 0;
        const auto steps = *rc::gen::container<std::vector<std::uint32_t>>(
            rc::gen::inRange<std::uint32_t>(0, 1U << 20));
        for (const std::uint32_t step : steps) {
            const std::size_t size = (step >> 3) % (most + 1);
            switch (step % 8) {
                case 0:
                case 1: {
                    const Frame frame = make_frame(size, next++);
                    if (ends.producer().try_enqueue(frame) == Status::ok) model.push_back(frame);
                    break;
                }
                case 2: {
                    std::vector<Frame> frames;
                    std::vector<std::span<const std::byte>> batch;
                    for (std::size_t i = 0; i < 5; ++i) {
                        frames.push_back(make_frame(size / (i + 1), next++));
                    }
                    for (const Frame& frame : frames) batch.emplace_back(frame);
                    const auto result = ends.producer().try_enqueue_batch(batch);
                    for (std::size_t i = 0; i < result.count; ++i) model.push_back(frames[i]);
                    break;
                }
                case 3: {
                    std::span<std::byte> place;
                    if (ends.producer().claim(size, place) == Status::ok) {
                        const Frame frame = make_frame(size - size / 3, next++);
                        if (!frame.empty()) {
                            std::memcpy(place.data(), frame.data(), frame.size());
                        }
                        RC_ASSERT(ends.producer().commit(frame.size()) == Status::ok);
                        model.push_back(frame);
                    }
                    break;
                }
                case 4: {
                    Frame out;
                    if (ends.consumer().try_dequeue(out) == Status::ok) {
                        RC_ASSERT(!model.empty());
                        RC_ASSERT(out == model.front());
                        model.pop_front();
                    }
                    break;
                }
                case 5:
                case 6: {
                    std::vector<Frame> out(4);
                    const auto result = ends.consumer().try_dequeue_batch(out);
                    RC_ASSERT(result.count <= model.size());
                    for (std::size_t i = 0; i < result.count; ++i) {
                        RC_ASSERT(out[i] == model.front());
                        model.pop_front();
                    }
                    break;
                }
                default: (void)ends.producer().flush(Deadline::now()); break;
            }
        }
        Frame out;
        while (!model.empty()) {
            RC_ASSERT(ends.take(out) == Status::ok);
            RC_ASSERT(out == model.front());
            model.pop_front();
        }
        RC_ASSERT(ends.consumer().try_dequeue(out) == Status::empty);
    });
    EXPECT_TRUE(held);
}

TYPED_TEST(ByteQueue, DrainsAndCloses) {
    Ends<Bytes, TypeParam::value> ends{Options{.ring = {.capacity = 1000}}};
    ASSERT_EQ(ends.producer().try_enqueue(make_frame(100, 1)), Status::ok);
    ASSERT_EQ(ends.producer().try_enqueue(Frame{}), Status::ok);
    ASSERT_EQ(ends.producer().close(Deadline::after(40s)), Status::ok);
    Frame out;
    ASSERT_EQ(ends.consumer().dequeue(out, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(out, make_frame(100, 1));
    ASSERT_EQ(ends.consumer().dequeue(out, Deadline::after(40s)), Status::ok);
    EXPECT_TRUE(out.empty());
    EXPECT_EQ(ends.consumer().dequeue(out, Deadline::after(40s)), Status::closed);
    EXPECT_EQ(ends.producer().stats().payload_bytes, 100U);
    EXPECT_EQ(ends.consumer().stats().payload_bytes, 100U);
}

}  // namespace
}  // namespace millrace::flow
