#include "measure_kv.hpp"

#include <array>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "bench/peers/memcached.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t key_bytes = 16;

/// "0000000000012345": a word for the programs that speak in words.
std::string key_of(std::uint64_t number) { return fmt::format("{:016}", number); }

std::string value_of(const KvCase& chosen, std::uint64_t number) {
    std::string value(chosen.value_bytes, 'v');
    const std::string key = key_of(number);
    value.replace(0, std::min(key.size(), value.size()), key, 0,
                  std::min(key.size(), value.size()));
    return value;
}
bool is_value_of(const KvCase& chosen, std::uint64_t number, std::string_view value) {
    if (value.size() != chosen.value_bytes) return false;
    std::array<char, key_bytes> digits;
    for (std::size_t at = digits.size(); at-- > 0; number /= 10) {
        digits[at] = static_cast<char>('0' + number % 10);
    }
    return std::memcmp(value.data(), digits.data(), std::min(value.size(), digits.size())) == 0;
}

/// Keys in an order that both the one and the other contender use, and that no prefetcher guesses.
class Order {
  public:
    explicit Order(const KvCase& chosen) : keys_{chosen.keys} {}
    [[nodiscard]] std::uint64_t next() { return random_() % keys_; }

  private:
    std::uint64_t keys_;
    std::minstd_rand random_{11};
};

/// `step()` makes `outstanding` GETs.
template <class Step>
double per_get(const KvCase& chosen, Step&& step) {
    const Windows windows{std::max<std::uint64_t>(chosen.operations / chosen.outstanding, 20)};
    return median_step(windows, [&](std::uint64_t) { step(); }) / chosen.outstanding;
}

// --- ours

class OwnClient {
  public:
    OwnClient(const connect::Address& address, const KvCase& chosen)
        : chosen_{chosen}, client_{kv::Client::connect(address, options(chosen), patience())} {}

    void fill() {
        for (std::uint64_t number = 0; number < chosen_.keys; ++number) {
            const std::string key = key_of(number);
            const std::string value = value_of(chosen_, number);
            require(client_.set(kv::bytes(key), kv::bytes(value), patience()).ok(), "a SET");
        }
    }
    void get_one(std::uint64_t number) {
        make_key(number);
        bool found = false;
        const kv::Result result = client_.get(
            kv::bytes(key_),
            [&](std::span<const std::byte> value) {
                found = is_value_of(chosen_, number, as_text(value));
            },
            base::Deadline::never());
        require_intact(result.ok() && found, "a GET");
    }
    /// Keeps as many on their way as there may be: `count` answers are taken.
    void get_many(Order& order, std::uint32_t count) {
        for (std::uint32_t taken = 0; taken < count;) {
            if (client_.outstanding() < chosen_.outstanding) {
                const std::uint64_t number = order.next();
                make_key(number);
                std::uint64_t id = 0;
                const kv::RequestParts parts{.key = kv::bytes(key_)};
                const base::Status status =
                    client_.outstanding() == 0
                        ? client_.submit(kv::Command::get, parts, id, base::Deadline::never())
                        : client_.submit(kv::Command::get, parts, id);
                if (status == base::Status::ok) {
                    sent_[id % sent_.size()] = number;
                    continue;
                }
                require(status == base::Status::full, "a request");
            }
            require(client_.wait(
                        [&](const kv::Answer& answer) {
                            require_intact(answer.result.ok() &&
                                               is_value_of(chosen_, sent_[answer.id % sent_.size()],
                                                           as_text(answer.value)),
                                           "a GET");
                        },
                        base::Deadline::never()),
                    "an answer");
            ++taken;
        }
    }
    void end() {
        while (client_.outstanding() != 0) {
            require(client_.wait([](const kv::Answer&) {}, patience()), "an answer");
        }
        require(client_.exit(patience()).ok(), "the end");
        (void)client_.close(patience());
    }

  private:
    static message::ClientOptions options(const KvCase& chosen) {
        message::ClientOptions made;
        made.window = std::max(chosen.outstanding, 1U);
        return made;
    }
    static std::string_view as_text(std::span<const std::byte> bytes) {
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    void make_key(std::uint64_t number) {
        for (std::size_t at = key_.size(); at-- > 0; number /= 10) {
            key_[at] = static_cast<char>('0' + number % 10);
        }
    }

    KvCase chosen_;
    kv::Client client_;
    std::string key_ = std::string(key_bytes, '0');
    std::array<std::uint64_t, message::largest_window> sent_{};
};

// --- others

/// `set` sets a key; `add` writes a GET after others, and `take` reads its answer.
template <class Set, class Add, class Take>
double measure_other(const KvCase& chosen, WordsServer& server, Set&& set, Add&& add, Take&& take) {
    return run_alone([&] {
        WordsClient client = server.client();
        for (std::uint64_t key = 0; key < chosen.keys; ++key) {
            set(client, key, value_of(chosen, key));
        }
        Order order{chosen};
        std::vector<std::uint64_t> asked(chosen.outstanding);
        std::string requests;
        return per_get(chosen, [&] {
            requests.clear();
            for (std::uint64_t& key : asked) {
                key = order.next();
                add(requests, key);
            }
            client.send(requests);
            for (const std::uint64_t key : asked) {
                require_intact(is_value_of(chosen, key, take(client)), "a value");
            }
            client.forget();
        });
    });
}

}  // namespace

double measure_kv(const KvCase& chosen) {
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            OwnClient client{address_of_first(pair), chosen};
            client.fill();
            Order order{chosen};
            const double ns = per_get(chosen, [&] {
                if (chosen.outstanding == 1) {
                    client.get_one(order.next());
                } else {
                    client.get_many(order, chosen.outstanding);
                }
            });
            client.end();
            return ns;
        },
        [&](Pair& pair) {
            kv::ServerOptions options;
            options.messages.polling = chosen.polling;
            options.messages.max_clients = 64;
            options.permitted.exit = true;
            auto server = kv::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, server.address().port());
            pair.meet();
            (void)server.serve(base::Deadline::after(std::chrono::seconds{50}));
            (void)server.close(patience());
        });
}

double measure_memcached(const KvCase& chosen) {
    Memcached server;
    return measure_other(chosen, server, set, add_get, take_get);
}

double measure_redis(const KvCase& chosen) {
    Redis server;
    return measure_other(chosen, server, set_in_redis, add_get_from_redis, take_get_from_redis);
}

namespace {

void fill(kv::Store& store, const KvCase& chosen) {
    for (std::uint64_t number = 0; number < chosen.keys; ++number) {
        const std::string key = key_of(number);
        const std::string value = value_of(chosen, number);
        require(store.set(kv::bytes(key), kv::bytes(value)).outcome == kv::Outcome::ok, "a set");
    }
}

double beyond_items(const KvCase& chosen, double bytes) {
    return bytes / static_cast<double>(chosen.keys) -
           static_cast<double>(key_bytes + chosen.value_bytes);
}

}  // namespace

double memory_per_item(const KvCase& chosen) {
    kv::Store store{{}};
    fill(store, chosen);
    return beyond_items(chosen, static_cast<double>(store.stats().memory_bytes));
}

double memory_per_item_of_memcached(const KvCase& chosen) {
    Memcached server;
    WordsClient client = server.client();
    fill(client, chosen.keys, std::string(chosen.value_bytes, 'v'));
    return beyond_items(chosen, memory_of_memcached(client));
}

double measure_store(const KvCase& chosen) {
    return run_alone([&] {
        kv::Store store{{}};
        fill(store, chosen);
        Order order{chosen};
        std::string key(key_bytes, '0');
        return per_get(chosen, [&] {
            for (std::uint32_t i = 0; i < chosen.outstanding; ++i) {
                const std::uint64_t number = order.next();
                std::uint64_t rest = number;
                for (std::size_t at = key.size(); at-- > 0; rest /= 10) {
                    key[at] = static_cast<char>('0' + rest % 10);
                }
                bool found = false;
                (void)store.get(kv::bytes(key), [&](const kv::Entry& entry) {
                    found = is_value_of(
                        chosen, number,
                        {reinterpret_cast<const char*>(entry.value.data()), entry.value.size()});
                });
                require_intact(found, "a get");
            }
        });
    });
}

}  // namespace millrace::bench
