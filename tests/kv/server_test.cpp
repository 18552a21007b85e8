// The key-value server and its client: every command and code, over both carriers and both ways of
// polling, with bad requests, clients that die, and a server that does.
#include "millrace/kv/server.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "millrace/base/error.hpp"
#include "millrace/kv/client.hpp"
#include "serving.hpp"
#include "stores.hpp"
#include "support/child_process.hpp"
#include "support/resources.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::kv {
namespace {

using namespace std::chrono_literals;

struct Kind {
    message::Polling polling = message::Polling::flag;
    ring::Carrier carrier = ring::Carrier::automatic;
    connect::Transport transport = connect::Transport::rc;
    std::uint32_t threads = 1;
    /// Over `rc`: how requests and answers travel.
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
};
class KvServer : public testing::TestWithParam<Kind> {
  protected:
    static ServerOptions options() {
        ServerOptions chosen;
        chosen.messages.polling = GetParam().polling;
        chosen.messages.tuning.carrier = GetParam().carrier;
        chosen.messages.transports = GetParam().transport;
        if (GetParam().transport == connect::Transport::ud) {
            chosen.messages.protection = message::Protection::trusted;
        }
        chosen.threads.count = GetParam().threads;
        return chosen;
    }
    static message::ClientOptions client_options() {
        message::ClientOptions chosen;
        chosen.tuning.carrier = GetParam().carrier;
        chosen.transport = GetParam().transport;
        chosen.requests = GetParam().requests;
        chosen.answers = GetParam().answers;
        return chosen;
    }
};
INSTANTIATE_TEST_SUITE_P(
    Kinds, KvServer,
    testing::Values(
        Kind{message::Polling::flag}, Kind{message::Polling::flag, ring::Carrier::post},
        Kind{message::Polling::dense}, Kind{message::Polling::dense, ring::Carrier::post},
        Kind{.polling = message::Polling::automatic, .transport = connect::Transport::tcp},
        Kind{.polling = message::Polling::automatic, .transport = connect::Transport::uc},
        Kind{.polling = message::Polling::automatic, .transport = connect::Transport::ud},
        Kind{.threads = 3}, Kind{.transport = connect::Transport::tcp, .threads = 2},
        // As work 002 does over RC; and as HERD does.
        Kind{.requests = message::Transfer::send, .answers = message::Transfer::send},
        Kind{.answers = message::Transfer::send}),
    [](const auto& each) {
        const Kind& kind = each.param;
        const std::string by =
            kind.threads == 1 ? "" : "_" + std::to_string(kind.threads) + "_threads";
        if (kind.answers == message::Transfer::send) {
            return std::string{name_of(kind.requests)} + "_" + std::string{name_of(kind.answers)};
        }
        if (kind.transport != connect::Transport::rc) {
            return std::string{name_of(kind.transport)} + by;
        }
        return std::string{name_of(kind.polling)} + "_" + std::string{ring::name_of(kind.carrier)} +
               by;
    });

TEST_P(KvServer, AnswersEveryCommand) {
    ServerOptions chosen = options();
    chosen.permitted = {.dump = true, .reset = true, .exit = true};
    Serving serving{chosen};
    Client client = serving.client(client_options());
    std::vector<std::byte> value;

    EXPECT_TRUE(client.ping(soon()).ok());
    EXPECT_EQ(client.get(bytes("a"), value, soon()).code, Code::key_error);
    const Result set = client.set(bytes("a"), bytes("first"), soon());
    ASSERT_TRUE(set.ok());
    EXPECT_GT(set.version, 0U);
    const Result got = client.get(bytes("a"), value, soon());
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got.version, set.version);
    EXPECT_EQ(text(value), "first");
    EXPECT_TRUE(client.exists(bytes("a"), soon()).ok());
    EXPECT_EQ(client.exists(bytes("b"), soon()).code, Code::key_error);

    const Result conflict =
        client.set(bytes("a"), bytes("other"), soon(), {.if_version = set.version + 1000});
    EXPECT_EQ(conflict.code, Code::conflict);
    EXPECT_EQ(conflict.version, set.version);
    EXPECT_EQ(client.set(bytes("a"), bytes("other"), soon(), {.if_version = 0}).code,
              Code::conflict);
    EXPECT_TRUE(client.set(bytes("a"), bytes("second"), soon(), {.if_version = set.version}).ok());
    EXPECT_EQ(client.erase(bytes("a"), soon(), set.version).code, Code::conflict);
    EXPECT_TRUE(client.erase(bytes("a"), soon()).ok());
    EXPECT_EQ(client.erase(bytes("a"), soon()).code, Code::key_error);

    EXPECT_TRUE(client.set(bytes("empty"), {}, soon()).ok());
    value.resize(5);
    EXPECT_TRUE(client.get(bytes("empty"), value, soon()).ok());
    EXPECT_TRUE(value.empty());

    EXPECT_TRUE(client.set(bytes("x"), bytes("1"), soon()).ok());
    std::map<std::string, std::string> dumped;
    EXPECT_TRUE(
        client
            .dump([&](const Entry& entry) { dumped[text(entry.key)] = text(entry.value); }, soon())
            .ok());
    EXPECT_EQ(dumped, (std::map<std::string, std::string>{{"empty", ""}, {"x", "1"}}));

    std::string lines;
    EXPECT_TRUE(client.stats(lines, soon()).ok());
    EXPECT_NE(lines.find("items 2\n"), std::string::npos) << lines;
    EXPECT_NE(lines.find("clients 1\n"), std::string::npos) << lines;
    EXPECT_TRUE(client.set_option("sweep", "5", soon()).ok());
    EXPECT_EQ(client.set_option("sweep", "none", soon()).code, Code::setopt_error);
    EXPECT_EQ(client.set_option("colour", "5", soon()).code, Code::setopt_error);

    EXPECT_TRUE(client.reset(soon()).ok());
    EXPECT_EQ(client.exists(bytes("x"), soon()).code, Code::key_error);
    EXPECT_TRUE(client.exit(soon()).ok());
    EXPECT_EQ(serving.join(), base::Status::closed);
}

TEST_P(KvServer, HoldsItemsOfEverySize) {
    Serving serving{options()};
    Client client = serving.client(client_options());
    std::vector<std::byte> found;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100},
                                   std::size_t{16384}, std::size_t{100'000}, longest_value}) {
        std::vector<std::byte> value(size);
        for (std::size_t i = 0; i < size; ++i) value[i] = static_cast<std::byte>(i * 7 + size);
        const std::string key = "key of " + std::to_string(size);
        ASSERT_TRUE(client.set(bytes(key), value, soon()).ok()) << size;
        ASSERT_TRUE(client.get(bytes(key), found, soon()).ok()) << size;
        EXPECT_EQ(found, value) << size;
    }
    const std::string longest(longest_key, 'k');
    EXPECT_TRUE(client.set(bytes(longest), bytes("v"), soon()).ok());
    EXPECT_TRUE(client.exists(bytes(longest), soon()).ok());
    EXPECT_EQ(client.set(bytes(longest + "k"), bytes("v"), soon()).code, Code::key_error);
    EXPECT_EQ(client.set(bytes("k"), std::vector<std::byte>(longest_value + 1), soon()).code,
              Code::store_error);
    EXPECT_EQ(client.get(bytes(""), found, soon()).code, Code::key_error);
}

TEST_P(KvServer, TakesManyRequestsAtOnce) {
    Serving serving{options()};
    message::ClientOptions chosen = client_options();
    chosen.window = 32;
    Client client = serving.client(chosen);
    std::map<std::uint64_t, std::string> wanted;
    std::size_t answered = 0;
    const auto take = [&](const Answer& answer) {
        ASSERT_TRUE(answer.result.ok());
        const auto found = wanted.find(answer.id);
        ASSERT_NE(found, wanted.end()) << "answered twice, or never asked for";
        EXPECT_EQ(text(answer.value), found->second);
        wanted.erase(found);
        ++answered;
    };
    constexpr std::size_t all = 2000;
    for (std::size_t sent = 0; answered < all;) {
        if (sent < all) {
            const std::string key = "key " + std::to_string(sent % 100);
            const bool sets = sent < 100;
            std::uint64_t id = 0;
            const Command command = sets ? Command::set : Command::get;
            const RequestParts parts{.key = bytes(key), .value = sets ? bytes(key) : bytes("")};
            const base::Status status = client.outstanding() == 0
                                            ? client.submit(command, parts, id, soon())
                                            : client.submit(command, parts, id);
            if (status == base::Status::ok) {
                wanted[id] = sets ? "" : key;
                ++sent;
                continue;
            }
            ASSERT_EQ(status, base::Status::full);
        }
        ASSERT_EQ(client.wait(take, soon()), base::Status::ok);
    }
    EXPECT_EQ(client.outstanding(), 0U);
}

/// A client that asks for at most eight at a time.
[[nodiscard]] Client narrow_client(Serving& serving, message::ClientOptions chosen) {
    chosen.window = 8;
    return serving.client(chosen);
}
void set_it(Client& client, const std::string& name) {
    ASSERT_TRUE(client.set(bytes(name), bytes("of " + name), soon()).ok());
}
/// That each of these, and none of what was asked for before, is answered: with what set_it() has
/// set, or, where `is_set(name)` says false, with none.
template <class IsSet>
void gets_these_alone(Client& client, const std::vector<std::string>& names, IsSet&& is_set) {
    std::vector<int> told(names.size());
    EXPECT_EQ(client.multi_get(
                  keys_of(names),
                  [&](std::size_t index, const Result& result, std::span<const std::byte> value) {
                      ASSERT_LT(index, told.size());
                      ++told[index];
                      const std::string& name = names[index];
                      EXPECT_EQ(result.code, is_set(name) ? Code::ok : Code::key_error);
                      EXPECT_EQ(text(value), is_set(name) ? "of " + name : "");
                  },
                  soon()),
              base::Status::ok);
    EXPECT_EQ(told, std::vector<int>(names.size(), 1));
    EXPECT_EQ(client.outstanding(), 0U);
}
void gets_these_alone(Client& client, const std::vector<std::string>& names) {
    gets_these_alone(client, names, [](const std::string&) { return true; });
}

TEST_P(KvServer, GetsManyKeysByOneCall) {
    Serving serving{options()};
    Client client = narrow_client(serving, client_options());
    std::vector<std::string> names = numbered_names(300);
    names[7] = "";  // no key
    const auto is_set = [](const std::string& name) {
        return name.size() % 2 == 0 && !name.empty();
    };
    for (const std::string& name : names) {
        if (is_set(name)) set_it(client, name);
    }
    for (int round = 0; round < 2; ++round) gets_these_alone(client, names, is_set);
}

TEST_P(KvServer, HearsOfManyKeysThatWereGivenUpAndGivesTheirValuesToNoLaterCall) {
    Serving serving{options()};
    Client client = narrow_client(serving, client_options());
    const std::vector<std::string> names = numbered_names(20);
    const std::vector<std::span<const std::byte>> keys = keys_of(names);
    for (const std::string& name : names) set_it(client, name);
    const auto nobody = [](std::size_t, const Result&, std::span<const std::byte>) { FAIL(); };
    serving.stop();  // so that nothing is answered
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(client.multi_get(keys, nobody, base::Deadline::after(1ms)), base::Status::timed_out);
    EXPECT_EQ(client.multi_get(keys, nobody, soon().cancelled_by(cancellation)),
              base::Status::cancelled);
    EXPECT_EQ(client.outstanding(), 0U);
    serving.go_on();
    gets_these_alone(client, {names[7], names[6]});

    int handed_out = 0;
    EXPECT_THROW((void)client.multi_get(
                     keys,
                     [&](std::size_t, const Result&, std::span<const std::byte>) {
                         if (++handed_out == 3) throw std::runtime_error{"the third"};
                     },
                     soon()),
                 std::runtime_error);
    EXPECT_EQ(handed_out, 3);
    EXPECT_EQ(client.outstanding(), 0U);
    gets_these_alone(client, names);

    // One key, the same way.
    EXPECT_THROW((void)client.get(
                     bytes(names[0]),
                     [](std::span<const std::byte>) { throw std::runtime_error{"it"}; }, soon()),
                 std::runtime_error);
    EXPECT_EQ(client.outstanding(), 0U);
    gets_these_alone(client, names);
}

TEST(KvServerAlone, IsNotAskedForManyKeysWhileAnswersToOtherRequestsAreOutstanding) {
    Serving serving;
    Client client = serving.client();
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(Command::ping, {}, id), base::Status::ok);
    const std::vector<std::span<const std::byte>> keys{bytes("key")};
    const auto nobody = [](std::size_t, const Result&, std::span<const std::byte>) { FAIL(); };
    try {
        (void)client.multi_get(keys, nobody, soon());
        FAIL() << "whose answer would be the ping's?";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_NE(std::string{error.what()}.find("1 requests"), std::string::npos) << error.what();
    }
    EXPECT_EQ(client.wait([&](const Answer& answer) { EXPECT_EQ(answer.id, id); }, soon()),
              base::Status::ok);
}

TEST_P(KvServer, ServesManyClientsWhoCountTogether) {
    Serving serving{options()};
    constexpr int clients = 6;
    constexpr int each = 50;
    std::atomic<int> failures{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < clients; ++i) {
            threads.emplace_back([&] {
                Client client = serving.client(client_options());
                for (int done = 0; done < each;) {
                    // Compare and set: lost updates would show in the sum.
                    std::vector<std::byte> value;
                    const Result got = client.get(bytes("sum"), value, soon());
                    const int sum = got.ok() ? std::stoi(text(value)) : 0;
                    const Result set = client.set(bytes("sum"), bytes(std::to_string(sum + 1)),
                                                  soon(), {.if_version = got.version});
                    if (set.ok()) {
                        ++done;
                    } else if (set.code != Code::conflict) {
                        ++failures;
                        return;
                    }
                }
            });
        }
    }
    EXPECT_EQ(failures, 0);
    Client client = serving.client(client_options());
    std::vector<std::byte> value;
    ASSERT_TRUE(client.get(bytes("sum"), value, soon()).ok());
    EXPECT_EQ(text(value), std::to_string(clients * each));
}

TEST_P(KvServer, GrowsWhileItServes) {
    Serving serving{options()};
    constexpr std::uint64_t kept = 200;
    constexpr std::uint64_t batches = 10;
    constexpr std::uint64_t added = 2'000;  // by each batch: the table doubles several times
    const auto key_of = [](std::uint64_t number) { return "key " + std::to_string(number); };
    const auto value_of = [](std::uint64_t number) {
        return std::string(number * 7 % 250, static_cast<char>('a' + number % 26));
    };
    Client filler = serving.client(client_options());
    const auto fill = [&](std::uint64_t from, std::uint64_t to) {
        const auto take = [](const Answer& answer) { ASSERT_TRUE(answer.result.ok()); };
        while (from != to || filler.outstanding() != 0) {
            if (from != to) {
                const std::string key = key_of(from);
                const std::string value = value_of(from);
                const RequestParts parts{.key = bytes(key), .value = bytes(value)};
                std::uint64_t id = 0;
                const base::Status status = filler.outstanding() == 0
                                                ? filler.submit(Command::set, parts, id, soon())
                                                : filler.submit(Command::set, parts, id);
                if (status == base::Status::ok) {
                    ++from;
                    continue;
                }
                ASSERT_EQ(status, base::Status::full);
            }
            ASSERT_EQ(filler.wait(take, soon()), base::Status::ok);
        }
    };
    fill(0, kept);
    const std::uint64_t memory_before = serving.server().store().stats().memory_bytes;
    std::atomic<bool> enough{false};
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> reads[2]{};
    {
        std::vector<std::jthread> readers;
        for (unsigned reader = 0; reader < 2; ++reader) {
            readers.emplace_back([&, reader] {
                Client client = serving.client(client_options());
                std::vector<std::byte> value;
                for (std::uint64_t number = reader; !enough; number = (number + 1) % kept) {
                    const bool right = client.get(bytes(key_of(number)), value, soon()).ok() &&
                                       text(value) == value_of(number);
                    if (!right) ++wrong;
                    ++reads[reader];
                }
            });
        }
        base::NapParker nap;
        for (std::uint64_t batch = 0; batch < batches; ++batch) {
            const std::uint64_t before[]{reads[0], reads[1]};
            fill(kept + batch * added, kept + (batch + 1) * added);
            // Both are served, whatever has grown.
            EXPECT_EQ(
                base::wait_until([&] { return reads[0] != before[0] && reads[1] != before[1]; },
                                 soon(), base::WaitPolicy::blocking(), nap),
                base::Status::ok);
        }
        enough = true;
    }
    EXPECT_EQ(wrong, 0U);
    EXPECT_GT(serving.server().store().stats().memory_bytes, memory_before + (2U << 20));
    std::vector<std::byte> value;
    for (std::uint64_t number = 0; number < kept + batches * added; number += 37) {
        ASSERT_TRUE(filler.get(bytes(key_of(number)), value, soon()).ok()) << number;
        EXPECT_EQ(text(value), value_of(number));
    }
}

TEST(KvServerAlone, DeniesWhatIsNotPermitted) {
    Serving serving;
    Client client = serving.client();
    ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
    EXPECT_EQ(client.reset(soon()).code, Code::denied);
    EXPECT_EQ(client.exit(soon()).code, Code::denied);
    EXPECT_EQ(client.dump([](const Entry&) { FAIL(); }, soon()).code, Code::denied);
    EXPECT_TRUE(client.exists(bytes("k"), soon()).ok());
}

TEST(KvServerAlone, DumpsMoreThanAnAnswerHoldsAndServesBetweenThePages) {
    ServerOptions chosen;
    chosen.permitted = {.dump = true};
    Serving serving{chosen};
    // 120 MiB, of items of several sizes.
    constexpr std::size_t items = 2400;
    std::vector<std::byte> value(100'000);
    const auto key_of = [](std::size_t item) { return "key " + std::to_string(item); };
    const auto size_of_value = [&](std::size_t item) { return value.size() / (1 + item % 3); };
    std::size_t all = 0;
    for (std::size_t item = 0; item < items; ++item) {
        const std::string key = key_of(item);
        std::memcpy(value.data(), &item, sizeof item);
        const auto of = std::span{value}.first(size_of_value(item));
        ASSERT_EQ(serving.server().store().set(bytes(key), of).outcome, Outcome::ok);
        all += key.size() + of.size();
    }
    ASSERT_GT(all, std::size_t{100} << 20);

    message::ClientOptions small;
    small.max_answer_bytes = (std::size_t{1} << 20) + 64;
    Client client = serving.client(small);
    Client other = serving.client();
    std::vector<int> met(items);
    std::size_t pages = 0;
    for (Cursor at = Cursor::begin; at != Cursor::end; ++pages) {
        std::size_t page = 0;
        const Result result = client.dump_page(
            at,
            [&](const Entry& entry) {
                page += dumped_head_bytes + entry.key.size() + entry.value.size();
                if (text(entry.key) == "meanwhile") return;
                std::size_t item = 0;
                ASSERT_GE(entry.value.size(), sizeof item);
                std::memcpy(&item, entry.value.data(), sizeof item);
                ASSERT_LT(item, items);
                EXPECT_EQ(text(entry.key), key_of(item));
                EXPECT_EQ(entry.value.size(), size_of_value(item));
                ++met[item];
            },
            soon());
        ASSERT_TRUE(result.ok());
        EXPECT_LE(page, dump_page_bytes);
        // Another's requests go on, and so do this one's.
        ASSERT_TRUE(other.set(bytes("meanwhile"), bytes("?"), soon()).ok());
        ASSERT_TRUE(client.exists(bytes("key 1"), soon()).ok());
    }
    EXPECT_GE(pages, all / dump_page_bytes);
    EXPECT_EQ(std::ranges::count(met, 1), std::ptrdiff_t{items}) << "each item once";
}

TEST(KvServerAlone, DumpsToAClientThatTakesShortAnswersOnly) {
    ServerOptions chosen;
    chosen.permitted = {.dump = true};
    Serving serving{chosen};
    message::ClientOptions small;
    small.max_answer_bytes = 1000;
    Client client = serving.client(small);
    const std::vector<std::byte> value(300);
    for (int item = 0; item < 100; ++item) {
        ASSERT_TRUE(client.set(bytes(std::to_string(item)), value, soon()).ok());
    }
    std::map<std::string, int> met;
    EXPECT_TRUE(client.dump([&](const Entry& entry) { ++met[text(entry.key)]; }, soon()).ok());
    EXPECT_EQ(met.size(), 100U);
}

TEST(KvServerAlone, DumpsFromWhereverAClientSays) {
    ServerOptions chosen;
    chosen.permitted = {.dump = true};
    Serving serving{chosen};
    Client client = serving.client();
    for (int item = 0; item < 1000; ++item) {
        ASSERT_TRUE(client.set(bytes(std::to_string(item)), bytes("v"), soon()).ok());
    }
    std::mt19937_64 random{3};
    for (int round = 0; round < 2000; ++round) {
        // Anything, and what may be a place.
        std::uint64_t number = random() >> random() % 64;
        if (round % 2 == 0) number = (random() % 3) << 56 | (random() % 2) << 24 | random() % 4096;
        auto at = static_cast<Cursor>(number);
        if (at == Cursor::end) continue;
        EXPECT_TRUE(client
                        .dump_page(
                            at, [](const Entry&) {}, soon())
                        .ok())
            << number;
    }
    EXPECT_TRUE(client.exists(bytes("999"), soon()).ok());
}

TEST(KvServerAlone, RefusesWhatIsNoRequest) {
    Serving serving{{.permitted = {.dump = true}}};
    auto raw = message::Client::connect(serving.server().address(),
                                        {.tuning = {.service = server_service}}, soon());
    const auto code_of = [&](std::span<const std::byte> payload, std::uint16_t command) {
        std::vector<std::byte> answer;
        EXPECT_EQ(raw.call(payload, answer, soon(), command), message::Outcome::ok);
        std::span<const std::byte> rest;
        const auto head = parse_answer(answer, rest);
        return head ? head->code : Code::unanswered;
    };
    std::vector<std::byte> empty(request_head_bytes);
    EXPECT_EQ(code_of({}, 2), Code::parsing_error);
    EXPECT_EQ(code_of(bytes("garbage that is no head"), 1), Code::parsing_error);
    EXPECT_EQ(code_of(empty, 0), Code::unknown_error);
    EXPECT_EQ(code_of(empty, 999), Code::unknown_error);
    EXPECT_EQ(code_of(empty, static_cast<std::uint16_t>(Command::get)), Code::key_error);
    EXPECT_EQ(code_of(empty, static_cast<std::uint16_t>(Command::set)), Code::key_error);
    EXPECT_EQ(code_of(empty, static_cast<std::uint16_t>(Command::ping)), Code::ok);
    EXPECT_EQ(code_of(empty, static_cast<std::uint16_t>(Command::dump)), Code::parsing_error);
}

TEST(KvServerAlone, KeepsItemsForTheTimesThatAStoreDoes) {
    Serving serving;
    Client client = serving.client();
    Store store{{.memory_bytes = least_memory}};
    const auto is_never = [](Store& of, std::string_view key) {
        bool never = false;
        of.get(bytes(key), [&](const Entry& entry) { never = !entry.expires_after.has_value(); });
        return never;
    };
    struct Case {
        const char* key;
        std::chrono::nanoseconds time;
        bool stays;
        bool for_ever;
    };
    constexpr std::chrono::nanoseconds century = longest_time;
    for (const Case& one :
         {Case{"least", std::chrono::nanoseconds::min(), false, false},
          Case{"-1 s", -1s, false, false}, Case{"-1 ns", -1ns, false, false},
          Case{"0", 0ns, false, false}, Case{"an hour", 1h, true, false},
          Case{"a century", century, true, false}, Case{"more", century + 1s, true, true},
          Case{"most", std::chrono::nanoseconds::max(), true, true}}) {
        const SetOptions options{.expires_after = one.time};
        // What was there before is gone in any case.
        ASSERT_TRUE(client.set(bytes(one.key), bytes("former"), soon()).ok());
        ASSERT_EQ(store.set(bytes(one.key), bytes("former")).outcome, Outcome::ok);
        EXPECT_EQ(client.set(bytes(one.key), bytes("v"), soon(), options).code, Code::ok)
            << one.key;
        EXPECT_EQ(store.set(bytes(one.key), bytes("v"), options).outcome, Outcome::ok) << one.key;
        EXPECT_EQ(client.exists(bytes(one.key), soon()).ok(), one.stays) << one.key;
        EXPECT_EQ(store.exists(bytes(one.key)), one.stays) << one.key;
        EXPECT_EQ(is_never(serving.server().store(), one.key), one.for_ever) << one.key;
        EXPECT_EQ(is_never(store, one.key), one.for_ever) << one.key;
    }
}

TEST(KvServerAlone, TellsAFullStore) {
    ServerOptions chosen;
    chosen.store.memory_bytes = least_memory;
    Serving serving{chosen};
    Client client = serving.client();
    const std::vector<std::byte> value(100'000, std::byte{5});
    int taken = 0;
    Result result;
    for (; taken < 1000; ++taken) {
        result = client.set(bytes("key " + std::to_string(taken)), value, soon());
        if (!result.ok()) break;
    }
    EXPECT_EQ(result.code, Code::store_error);
    EXPECT_GT(taken, 10);
    std::vector<std::byte> found;
    for (int i = 0; i < taken; ++i) {
        ASSERT_TRUE(client.get(bytes("key " + std::to_string(i)), found, soon()).ok()) << i;
        EXPECT_EQ(found, value);
    }
}

TEST(KvServerAlone, SweepsItemsWhoseTimeIsOver) {
    ServerOptions chosen;
    chosen.sweep_period = 1ms;
    Serving serving{chosen};
    Client client = serving.client();
    ASSERT_TRUE(client.set(bytes("stays"), bytes("v"), soon()).ok());
    for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(
            client
                .set(bytes("goes " + std::to_string(i)), bytes("v"), soon(), {.expires_after = 1ms})
                .ok());
    }
    const base::Deadline patience = soon();
    while (serving.server().store().stats().items != 1 && !patience.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    const StoreStats stats = serving.server().store().stats();
    EXPECT_EQ(stats.items, 1U) << "though nobody asked for them";
    EXPECT_EQ(stats.expired, 10U);
    EXPECT_TRUE(client.exists(bytes("stays"), soon()).ok());
}

TEST(KvServerAlone, TakesTheTimeOfSomeRequests) {
    Serving serving;
    Client client = serving.client();
    constexpr std::uint64_t each = 400;
    std::vector<std::byte> value;
    for (std::uint64_t i = 0; i < each; ++i) {
        ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
        ASSERT_TRUE(client.get(bytes("k"), value, soon()).ok());
    }
    for (const Command command : {Command::set, Command::get}) {
        const ServiceTimes times = serving.server().service_times(command);
        EXPECT_GT(times.timed, each / timed_one_of / 2) << "though every other request is another";
        EXPECT_LT(times.timed, each / timed_one_of * 2);
        EXPECT_GT(times.mean_ns, 0);
        EXPECT_GT(times.p50_ns, 0U);
        EXPECT_LE(times.p50_ns, times.p90_ns);
        EXPECT_LE(times.p90_ns, times.p99_ns);
        EXPECT_LE(times.p99_ns, times.p999_ns);
        EXPECT_LE(times.p999_ns, times.longest_ns);
    }
    EXPECT_EQ(serving.server().service_times(Command::del).timed, 0U);
    EXPECT_EQ(serving.server().service_times(Command::ping).timed, 0U);
}

ServerOptions of_three_threads() {
    ServerOptions options;
    options.threads.count = 3;
    return options;
}

// Clients come to one thread after the other, so the last of three is not the one that sweeps, nor
// the one that called serve().
TEST(KvServerThreads, SweepAndEndForClientsOfWhicheverThread) {
    ServerOptions chosen = of_three_threads();
    chosen.sweep_period = 1ms;
    chosen.permitted.exit = true;
    Serving serving{chosen};
    std::vector<Client> clients;
    for (int i = 0; i < 3; ++i) clients.push_back(serving.client());
    ASSERT_TRUE(clients[2].set(bytes("goes"), bytes("v"), soon(), {.expires_after = 1ms}).ok());
    const base::Deadline patience = soon();
    while (serving.server().store().stats().expired != 1 && !patience.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(serving.server().store().stats().expired, 1U);
    ASSERT_TRUE(clients[2].set(bytes("k"), bytes("of the third"), soon()).ok());
    std::vector<std::byte> value;
    for (Client& client : clients) {
        ASSERT_TRUE(client.get(bytes("k"), value, soon()).ok());
        EXPECT_EQ(text(value), "of the third");
    }
    EXPECT_TRUE(clients[1].exit(soon()).ok());
    EXPECT_EQ(serving.join(), base::Status::closed);
    EXPECT_EQ(serving.server().stats().requests, 6U);
    EXPECT_EQ(serving.server().stats().joined, 3U);
}

TEST(KvServerThreads, EvictBesideEachOtherAndGiveWholeValues) {
    ServerOptions chosen = of_three_threads();
    chosen.store.memory_bytes = least_memory;
    chosen.store.when_full = WhenFull::evict;
    Serving serving{chosen};
    std::atomic<std::uint64_t> found{0};
    std::vector<std::thread> crowd;
    for (unsigned i = 0; i < 6; ++i) {
        crowd.emplace_back([&, i] {
            Client client = serving.client();
            std::mt19937 random{i};
            std::vector<std::byte> value;
            for (int call = 0; call < 1500; ++call) {
                const std::string key = "key " + std::to_string(random() % 4000);
                if (random() % 2 == 0) {
                    const std::size_t length = random() % 20 == 0 ? 30'000 : 8 + random() % 4000;
                    ASSERT_TRUE(client.set(bytes(key), sealed(random(), length), soon()).ok());
                } else if (client.get(bytes(key), value, soon()).ok()) {
                    EXPECT_TRUE(is_whole(value));
                    ++found;
                }
            }
        });
    }
    for (std::thread& each : crowd) each.join();
    serving.stop();
    const StoreStats stats = serving.server().store().stats();
    EXPECT_GT(stats.evicted, 0U);
    EXPECT_GT(found, 0U);
    EXPECT_EQ(stats.refused, 0U);
    EXPECT_LE(stats.memory_bytes, least_memory);
    EXPECT_EQ(serving.server().stats().requests, 6U * 1500);
}

// Items come and go, by their time or because there is no room: those that stay are none's
// business.
TEST(KvServerThreads, LoseNothingElseWhileItemsExpireAndAreRefused) {
    ServerOptions chosen = of_three_threads();
    chosen.store.memory_bytes = least_memory;
    chosen.sweep_period = 1ms;
    Serving serving{chosen};
    constexpr std::uint64_t kept = 300;
    const auto key_of = [](std::uint64_t number) { return "kept " + std::to_string(number); };
    Client keeper = serving.client();
    for (std::uint64_t number = 0; number < kept; ++number) {
        const auto value = sealed(number, 8 + number * 31 % 2000);
        ASSERT_TRUE(keeper.set(bytes(key_of(number)), value, soon()).ok());
    }
    std::atomic<std::uint64_t> over{0};
    std::vector<std::jthread> crowd;
    for (unsigned i = 0; i < 3; ++i) {
        crowd.emplace_back([&, i] {
            Client client = serving.client();
            std::mt19937 random{i + 1};
            for (int call = 0; call < 1200; ++call) {
                const std::string key = std::to_string(i) + " " + std::to_string(call);
                const Result result =
                    client.set(bytes(key), sealed(1, 8 + random() % 30'000), soon(),
                               {.expires_after = std::chrono::milliseconds{1 + random() % 20}});
                EXPECT_TRUE(result.ok() || result.code == Code::store_error);
            }
            ++over;
        });
    }
    std::vector<std::byte> value;
    // Once more behind the last of them.
    for (bool last = false, more = true; more; more = !last) {
        last = over == crowd.size();
        for (std::uint64_t number = 0; number < kept; ++number) {
            ASSERT_TRUE(keeper.get(bytes(key_of(number)), value, soon()).ok()) << number;
            ASSERT_TRUE(is_whole(value) && seed_of(value) == number);
        }
    }
    crowd.clear();
    const base::Deadline patience = soon();
    while (serving.server().store().stats().items != kept && !patience.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    const StoreStats stats = serving.server().store().stats();
    EXPECT_EQ(stats.items, kept);
    EXPECT_GT(stats.expired, 0U);
    EXPECT_EQ(stats.evicted, 0U);
    EXPECT_LE(stats.memory_bytes, least_memory);
}

/// Servers and clients that talk by one transport.
class KvServerBy : public testing::TestWithParam<connect::Transport> {
  protected:
    [[nodiscard]] static std::string name() { return std::string{name_of(GetParam())}; }
};
INSTANTIATE_TEST_SUITE_P(Transports, KvServerBy,
                         testing::Values(connect::Transport::rc, connect::Transport::tcp,
                                         connect::Transport::uc, connect::Transport::ud),
                         [](const auto& each) { return std::string{name_of(each.param)}; });

TEST_P(KvServerBy, RefusesAClientOfAnotherVersionAndTellsIt) {
    ServerOptions options;
    options.messages.transports = GetParam();
    if (GetParam() == connect::Transport::ud) {
        options.messages.protection = message::Protection::trusted;
    }
    Serving serving{options};
    message::ClientOptions coming;
    coming.transport = GetParam();
    Client client = serving.client(coming);
    ASSERT_TRUE(client.set(bytes("name"), bytes("a value"), soon()).ok());
    for (const std::uint32_t version : {1U, 1000U}) {
        try {
            (void)connect::connect(
                serving.server().address(),
                {.service = "key-value store", .service_version = version, .transport = GetParam()},
                soon());
            ADD_FAILURE() << "version " << version << " was taken";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::version_mismatch) << error.what();
            EXPECT_NE(std::string{error.what()}.find("this end " + std::to_string(version)),
                      std::string::npos)
                << error.what();
        }
    }
    // Nothing is lost, and others are served, those who come later as well.
    Client other = serving.client(coming);
    std::vector<std::byte> value;
    for (Client* const one : {&client, &other}) {
        ASSERT_TRUE(one->get(bytes("name"), value, soon()).ok());
        EXPECT_EQ(text(value), "a value");
    }
}

ServerOptions taking(std::string_view transport) {
    ServerOptions options;
    options.messages.transports = connect::parse_transport(transport).value();
    if (options.messages.transports.has(connect::Transport::ud)) {
        options.messages.protection = message::Protection::trusted;
    }
    return options;
}
message::ClientOptions coming_by(std::string_view transport) {
    message::ClientOptions options;
    options.transport = connect::parse_transport(transport).value();
    return options;
}

/// transport, threads, address
MILLRACE_CHILD(kv_server) {
    ServerOptions options = taking(arguments.at(0));
    options.threads.count = static_cast<std::uint32_t>(std::stoul(arguments.at(1)));
    Server server = Server::listen(connect::Address::parse(arguments.at(2)), options);
    test::say(std::to_string(server.address().port()));
    (void)server.serve(base::Deadline::after(60s));
    return 0;
}

/// port, transport
MILLRACE_CHILD(kv_client) {
    const auto port = static_cast<std::uint16_t>(std::stoi(arguments.at(0)));
    Client client = Client::connect(connect::Address::tcp("127.0.0.1", port),
                                    coming_by(arguments.at(1)), soon());
    (void)client.set(bytes("k"), bytes("v"), soon());
    test::say("set");
    while (client
               .get(
                   bytes("k"), [](std::span<const std::byte>) {}, soon())
               .ok()) {
    }
    return 0;
}

TEST_P(KvServerBy, EndsTheCallsOfItsClientsWhenItDies) {
    Serving keeps{taking(name())};  // this process has a server, too
    auto child = test::ChildProcess::start("kv_server", {name(), "1", "127.0.0.1:0"});
    const auto port = static_cast<std::uint16_t>(std::stoi(child.read_line().value_or("0")));
    Client client =
        Client::connect(connect::Address::tcp("127.0.0.1", port), coming_by(name()), soon());
    ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
    child.kill();
    (void)child.wait();
    Result result;
    for (int i = 0; i < 3; ++i) {
        result = client.set(bytes("k"), bytes("v"), soon());
        EXPECT_EQ(result.code, Code::unanswered);
        EXPECT_EQ(result.outcome, message::Outcome::peer_lost);
    }
}

TEST_P(KvServerBy, OutlivesClientsThatAreKilledAndKeepsNothingOfThem) {
    Serving serving{taking(name())};
    Client client = serving.client(coming_by(name()));
    ASSERT_TRUE(client.ping(soon()).ok());
    // One behind the other has left: how much is kept for the next depends on how many there were
    // at a time.
    const auto kill_clients = [&](int count) {
        for (int i = 0; i < count; ++i) {
            const auto address = serving.server().address();
            auto child =
                test::ChildProcess::start("kv_client", {std::to_string(address.port()), name()});
            EXPECT_EQ(child.read_line(), "set");
            child.kill();
            (void)child.wait();
            const base::Deadline patience = soon();
            while (serving.server().stats().clients != 1 && !patience.expired()) {
                std::this_thread::sleep_for(1ms);
                ASSERT_TRUE(client.ping(soon()).ok());
            }
            EXPECT_EQ(serving.server().stats().clients, 1U);
        }
    };
    // What the first ones leave may be kept for the next: places, and memory for them.
    ASSERT_NO_FATAL_FAILURE(kill_clients(2));
    const std::size_t descriptors = test::open_descriptors();
    const std::size_t mappings = test::shared_mappings();
    ASSERT_NO_FATAL_FAILURE(kill_clients(5));
    const base::Deadline patience = soon();
    // One run of nine, beside other load, had one descriptor more for good, and why is not known.
    // What each client left would be five.
    constexpr std::size_t unexplained = 2;
    const auto has_let_go = [&] {
        return test::open_descriptors() <= descriptors + unexplained &&
               test::shared_mappings() <= mappings;
    };
    while (!has_let_go() && !patience.expired()) {
        std::this_thread::sleep_for(1ms);
        ASSERT_TRUE(client.ping(soon()).ok());
    }
    EXPECT_LE(test::open_descriptors(), descriptors + unexplained);
    EXPECT_LE(test::shared_mappings(), mappings);
    EXPECT_TRUE(client.exists(bytes("k"), soon()).ok()) << "no lock is held, and no item is lost";
    EXPECT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
}

TEST_P(KvServerBy, IsThereAgainAtTheSameAddress) {
    auto first = std::make_unique<Serving>(taking(name()));
    const connect::Address address = first->server().address();
    {
        Client client = first->client(coming_by(name()));
        ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
    }
    first.reset();
    Serving second{taking(name()), address};
    Client client = second.client(coming_by(name()));
    EXPECT_EQ(client.exists(bytes("k"), soon()).code, Code::key_error) << "it is another store";
}

TEST_P(KvServerBy, IsThereAgainAtOnceWhenItWasKilled) {
    // What a killed one leaves behind at a path is in nobody's way; and no other takes it
    // meanwhile.
    const test::TemporaryFolder folder;
    const std::string address = "unix:" + folder.path("kv");
    for (int life = 0; life < 3; ++life) {
        auto child = test::ChildProcess::start("kv_server", {name(), "1", address});
        ASSERT_TRUE(child.read_line().has_value()) << "in life " << life;
        Client client =
            Client::connect(connect::Address::parse(address), coming_by(name()), soon());
        EXPECT_EQ(client.exists(bytes("k"), soon()).code, Code::key_error);
        ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
        child.kill();
        (void)child.wait();
    }
}

TEST_P(KvServerBy, IsThereAgainAtItsPortWhenItWasKilled) {
    // Below the ports that the system gives to others, so that none of these is in the way.
    std::mt19937 random{std::random_device{}()};
    std::string port;
    for (int life = 0; life < 3; ++life) {
        std::optional<test::ChildProcess> child;
        std::optional<std::string> said;
        for (int tries = 0; tries < 20 && !said; ++tries) {
            if (life == 0) port = std::to_string(20'000 + random() % 10'000);
            child.emplace(
                test::ChildProcess::start("kv_server", {name(), "1", "127.0.0.1:" + port}));
            said = child->read_line();
            if (life != 0) break;
        }
        ASSERT_EQ(said, port) << "in life " << life;
        const auto address = connect::Address::parse("127.0.0.1:" + port);
        Client client = Client::connect(address, coming_by(name()), soon());
        Client idle = Client::connect(address, coming_by(name()), soon());
        EXPECT_EQ(client.exists(bytes("k"), soon()).code, Code::key_error);
        ASSERT_TRUE(client.set(bytes("k"), bytes("v"), soon()).ok());
        child->kill();
        (void)child->wait();
    }
}

TEST_P(KvServerBy, ServesTwoHundredClients) {
    constexpr std::size_t count = 200;
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max = std::max<rlim_t>(files.rlim_max, 30 * count);
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        GTEST_SKIP() << "too few descriptors are allowed here";
    ServerOptions chosen = taking(name());
    chosen.messages.ring_bytes = 4096;
    Serving serving{chosen};
    message::ClientOptions small = coming_by(name());
    small.ring_bytes = 4096;
    std::vector<Client> clients;
    for (std::size_t i = 0; i < count; ++i) clients.push_back(serving.client(small));
    for (std::size_t i = 0; i < count; ++i) {
        const std::string key = "of " + std::to_string(i);
        ASSERT_TRUE(clients[i].set(bytes(key), bytes(key), soon()).ok()) << i;
    }
    std::vector<std::byte> value;
    for (std::size_t i = 0; i < count; ++i) {
        const std::string key = "of " + std::to_string(i * 7 % count);
        ASSERT_TRUE(clients[i].get(bytes(key), value, soon()).ok()) << i;
        EXPECT_EQ(text(value), key);
    }
    EXPECT_EQ(serving.server().stats().clients, count);
}

/// port, transport: comes again and again, until it is killed.
MILLRACE_CHILD(kv_comer) {
    const auto port = static_cast<std::uint16_t>(std::stoi(arguments.at(0)));
    test::say("comes");
    while (true) {
        Client client = Client::connect(connect::Address::tcp("127.0.0.1", port),
                                        coming_by(arguments.at(1)), soon());
        (void)client.set(bytes("comer"), bytes("v"), soon());
    }
}

// Peers are heard by one thread and handed to another one.
TEST_P(KvServerBy, OutlivesClientsThatAreKilledOnTheirWayToTheirThread) {
    ServerOptions chosen = taking(name());
    chosen.threads.count = 3;
    Serving serving{chosen};
    Client client = serving.client(coming_by(name()));
    const std::string port = std::to_string(serving.server().address().port());
    for (int round = 0; round < 8; ++round) {
        auto child = test::ChildProcess::start("kv_comer", {port, name()});
        ASSERT_EQ(child.read_line(), "comes");
        const base::Deadline moment = base::Deadline::after(round * 3ms);
        do {
            ASSERT_TRUE(client.ping(soon()).ok());
        } while (!moment.expired());
        child.kill();
        (void)child.wait();
    }
    const base::Deadline patience = soon();
    while (serving.server().stats().clients != 1 && !patience.expired()) {
        ASSERT_TRUE(client.ping(soon()).ok());
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(serving.server().stats().clients, 1U);
    for (int i = 0; i < 6; ++i) {
        Client next = serving.client(coming_by(name()));
        EXPECT_TRUE(next.ping(soon()).ok()) << "of each thread, twice";
    }
}

TEST_P(KvServerBy, EndsCallsAndComersWhenItIsKilledThoughThreadsServe) {
    auto child = test::ChildProcess::start("kv_server", {name(), "3", "127.0.0.1:0"});
    const auto address = connect::Address::tcp(
        "127.0.0.1", static_cast<std::uint16_t>(std::stoi(child.read_line().value_or("0"))));
    base::Cancellation killed;  // of whoever asks for a new connection then
    std::atomic<int> answered{0};
    std::atomic<int> over{0};
    std::vector<std::jthread> comers;
    for (int i = 0; i < 4; ++i) {
        comers.emplace_back([&] {
            try {
                while (true) {
                    Client client =
                        Client::connect(address, coming_by(name()), soon().cancelled_by(killed));
                    const Result result = client.set(bytes("k"), bytes("v"), soon());
                    if (!result.ok()) {
                        EXPECT_EQ(result.code, Code::unanswered);
                        EXPECT_NE(result.outcome, message::Outcome::timed_out);
                        break;
                    }
                    ++answered;
                }
            } catch (const base::Error&) {
                // Nobody is there any more.
            }
            ++over;
        });
    }
    const base::Deadline patience = soon();
    while (answered < 20 && over < 4 && !patience.expired()) std::this_thread::sleep_for(1ms);
    child.kill();
    (void)child.wait();
    killed.request();
    comers.clear();
    EXPECT_EQ(over, 4);
    EXPECT_GE(answered, 1);
}

}  // namespace
}  // namespace millrace::kv
