// Messages in a stream of bytes: wherever it is cut, whatever it claims.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "lane/socket_framing.hpp"
#include "message/serving.hpp"

namespace millrace::message {
namespace {

using Found = SocketInbox::Found;
constexpr std::size_t most = std::size_t{1} << 20;

/// At most `limit` of what is pending there goes to here.
std::size_t carry(SocketOutbox& from, SocketInbox& to, std::size_t limit) {
    const std::span<std::byte> room = to.room();
    const std::size_t bytes = std::min({limit, room.size(), from.pending().size()});
    std::copy_n(from.pending().begin(), bytes, room.begin());
    to.took(bytes);
    from.sent(bytes);
    return bytes;
}

SessionHead head_of(std::uint64_t id) { return pack(SessionHeader{.id = id}); }

TEST(SocketFraming, CarriesMessagesOfEverySizeWhereverTheStreamIsCut) {
    for (unsigned seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random{seed};
        SocketOutbox outbox;
        SocketInbox inbox{most};
        const std::size_t longest_cut = std::size_t{1} << random() % 18;
        std::uint64_t laid = 0;
        std::uint64_t taken = 0;
        const auto size_of = [&](std::uint64_t id) {
            return (id * 2654435761U + seed) % (id % 50 == 0 ? 200'000 : 300);
        };
        while (taken < 500) {
            while (laid < 500 && outbox.pending().size() < 4 * longest_cut) {
                ++laid;
                const Bytes payload = content(seed, laid, size_of(laid));
                if (laid % 2 == 0) {
                    outbox.append(head_of(laid), payload);
                    continue;
                }
                // In place: what is claimed again before the commit is the same place.
                std::span<std::byte> place = outbox.claim(session_head_bytes + payload.size());
                std::copy(payload.begin(), payload.end(), place.begin() + session_head_bytes);
                ASSERT_EQ(outbox.claim(place.size()).data(), place.data());
                const SessionHead head = head_of(laid);
                std::memcpy(place.data(), &head, sizeof head);
                outbox.commit(place.size());
            }
            ASSERT_GT(carry(outbox, inbox, 1 + random() % longest_cut), 0U);
            std::span<const std::byte> message;
            while (inbox.front(message) == Found::message) {
                ASSERT_TRUE(inbox.has_front());
                ASSERT_EQ(reinterpret_cast<std::uintptr_t>(message.data()) % 8, 0U);
                SessionHeader header;
                std::span<const std::byte> payload;
                ASSERT_TRUE(parse(message, header, payload));
                ASSERT_EQ(header.id, ++taken);
                ASSERT_TRUE(std::ranges::equal(payload, content(seed, taken, size_of(taken))));
                inbox.pass();
            }
            ASSERT_EQ(inbox.front(message), Found::nothing);
            ASSERT_FALSE(inbox.has_front());
        }
        EXPECT_TRUE(inbox.is_between_frames());
        EXPECT_EQ(inbox.passed(), outbox.laid());
        outbox.append_goodbye(77);
        while (!outbox.empty()) carry(outbox, inbox, 3);
        std::span<const std::byte> message;
        EXPECT_EQ(inbox.front(message), Found::goodbye);
        EXPECT_EQ(inbox.passed_by_peer(), 77U);
    }
}

TEST(SocketFraming, PassesOverWhatIsTooLargeAndGoesOnBehindIt) {
    for (const std::size_t cut : {1, 7, 100, 5000, 100'000}) {
        SocketOutbox outbox;
        SocketInbox inbox{1000};
        outbox.append(head_of(1), Bytes(984));
        outbox.append(head_of(2), Bytes(985));
        outbox.append(head_of(3), Bytes(300'000));
        outbox.append(head_of(4), content(1, 4, 10));
        std::vector<std::pair<std::uint64_t, Found>> found;
        while (found.size() < 4) {
            ASSERT_GT(carry(outbox, inbox, cut), 0U);
            std::span<const std::byte> message;
            while (true) {
                const Found what = inbox.front(message);
                if (what == Found::nothing) break;
                SessionHeader header;
                std::span<const std::byte> payload;
                ASSERT_TRUE(parse(message, header, payload));
                ASSERT_EQ(reinterpret_cast<std::uintptr_t>(message.data()) % 8, 0U);
                found.emplace_back(header.id, what);
                if (header.id == 4) {
                    EXPECT_TRUE(std::ranges::equal(payload, content(1, 4, 10)));
                }
                inbox.pass();
            }
            ASSERT_LE(inbox.capacity(), 2 * ByteQueue::usual) << "nothing of it is kept";
        }
        EXPECT_EQ(found, (std::vector<std::pair<std::uint64_t, Found>>{{1, Found::message},
                                                                       {2, Found::too_large},
                                                                       {3, Found::too_large},
                                                                       {4, Found::message}}));
        EXPECT_EQ(inbox.passed(), outbox.laid());
    }
}

TEST(SocketFraming, TakesMemoryForWhatHasComeAndGivesItBack) {
    SocketInbox inbox{std::size_t{1} << 30};
    const SocketFrame claims{.bytes = 900'000'000};
    std::span<std::byte> room = inbox.room();
    std::memcpy(room.data(), &claims, sizeof claims);
    inbox.took(sizeof claims);
    std::size_t here = sizeof claims;
    for (int i = 0; i < 300; ++i) {
        room = inbox.room();
        ASSERT_LE(inbox.capacity(), 2 * here + 2 * ByteQueue::usual);
        const std::size_t some = std::min<std::size_t>(room.size(), 3000);
        inbox.took(some);
        here += some;
    }
    EXPECT_FALSE(inbox.is_between_frames());

    SocketOutbox outbox;
    SocketInbox other{most};
    outbox.append(head_of(1), Bytes(900'000));
    while (!outbox.empty()) carry(outbox, other, 65'536);
    EXPECT_GT(other.capacity(), 900'000U);
    other.pass();
    EXPECT_LE(other.capacity(), ByteQueue::usual);
}

TEST(SocketFraming, GrowsWithWhatComesAtOnceAndShrinksWhenItIsLittle) {
    SocketOutbox outbox;
    SocketInbox inbox{most};
    const auto pass_all = [&] {
        while (!outbox.empty()) {
            carry(outbox, inbox, most);
            while (inbox.has_front()) inbox.pass();
        }
    };
    for (int i = 0; i < 10'000; ++i) outbox.append(head_of(1), Bytes(100));
    pass_all();
    EXPECT_GE(inbox.capacity(), ByteQueue::usual / 2);
    for (int i = 0; i < 1000; ++i) {
        outbox.append(head_of(1), Bytes(100));
        pass_all();
    }
    EXPECT_EQ(inbox.capacity(), ByteQueue::smallest);
}

TEST(SocketFraming, CallsGarbageWhatIsNoFrame) {
    const auto found_in = [](Bytes bytes) {
        SocketInbox inbox{most};
        std::copy(bytes.begin(), bytes.end(), inbox.room().begin());
        inbox.took(bytes.size());
        std::span<const std::byte> message;
        return inbox.front(message);
    };
    EXPECT_EQ(found_in(Bytes(7)), Found::nothing);
    EXPECT_EQ(found_in(Bytes(8)), Found::garbage);
    EXPECT_EQ(found_in(bytes_of("GET / HTTP/1.1\r\n\r\n")), Found::garbage);
    SocketFrame frame{.bytes = 4, .kind = SocketFrame::Kind::goodbye};
    Bytes bytes(16);
    std::memcpy(bytes.data(), &frame, sizeof frame);
    EXPECT_EQ(found_in(bytes), Found::garbage) << "a goodbye of another length";
    frame.bytes = 8;
    std::memcpy(bytes.data(), &frame, sizeof frame);
    EXPECT_EQ(found_in(bytes), Found::goodbye);
    bytes.pop_back();
    EXPECT_EQ(found_in(bytes), Found::nothing);
}

}  // namespace
}  // namespace millrace::message
