// Consistent hashing: which server a key belongs to, as libmemcached's clients have it.
#include "millrace/kv/ketama.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/kv/client.hpp"

namespace millrace::kv {
namespace {

std::vector<std::string> some_servers(std::size_t count) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
        // Some of them with the port that libmemcached leaves out.
        names.push_back("10.0.1." + std::to_string(i) + (i % 3 == 0 ? ":11211" : ":11300"));
    }
    return names;
}
std::string some_key(int i) { return "key:" + std::to_string(i); }

/// libmemcached as it is in Debian, by its published calls. It asks no server for this.
class Libmemcached {
  public:
    explicit Libmemcached(const std::vector<std::string>& servers) {
        library_ = ::dlopen("libmemcached.so.11", RTLD_NOW);
        if (library_ == nullptr) return;
        self_ = call<void*(void*)>("memcached_create")(nullptr);
        constexpr int ketama_weighted = 16;  // MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED
        (void)call<int(void*, int, std::uint64_t)>("memcached_behavior_set")(self_, ketama_weighted,
                                                                             1);
        for (const std::string& name : servers) {
            const std::size_t colon = name.rfind(':');
            (void)call<int(void*, const char*, std::uint16_t)>("memcached_server_add")(
                self_, name.substr(0, colon).c_str(),
                static_cast<std::uint16_t>(std::stoi(name.substr(colon + 1))));
        }
    }
    Libmemcached(const Libmemcached&) = delete;
    Libmemcached& operator=(const Libmemcached&) = delete;
    ~Libmemcached() {
        if (self_ != nullptr) call<void(void*)>("memcached_free")(self_);
    }
    [[nodiscard]] bool is_there() const { return self_ != nullptr; }
    [[nodiscard]] std::size_t server_of(const std::string& key) const {
        return call<std::uint32_t(const void*, const char*, std::size_t)>(
            "memcached_generate_hash")(self_, key.data(), key.size());
    }

  private:
    template <class Function>
    Function* call(const char* name) const {
        return reinterpret_cast<Function*>(::dlsym(library_, name));
    }
    void* library_ = nullptr;
    void* self_ = nullptr;
};

TEST(Ketama, SendsEveryKeyWhereLibmemcachedSendsIt) {
    // Of 41 and 47 servers, among others, libmemcached's arithmetic leaves points out.
    for (const std::size_t count : {1U, 2U, 3U, 5U, 7U, 10U, 41U, 47U, 61U, 100U}) {
        const auto servers = some_servers(count);
        const Libmemcached theirs{servers};
        if (!theirs.is_there()) {
            GTEST_SKIP() << "libmemcached-tools: scripts/install-dependencies test";
        }
        const Ketama ours{servers};
        for (int i = 0; i < 5000; ++i) {
            ASSERT_EQ(ours.server_of(bytes(some_key(i))), theirs.server_of(some_key(i)))
                << some_key(i) << " of " << count;
        }
    }
}

TEST(Ketama, SpreadsKeysAboutEvenly) {
    const Ketama ring{some_servers(8)};
    std::vector<int> counts(8);
    constexpr int keys = 40'000;
    for (int i = 0; i < keys; ++i) ++counts[ring.server_of(bytes(some_key(i)))];
    for (const int count : counts) {
        EXPECT_GT(count, keys / 8 / 2);
        EXPECT_LT(count, keys / 8 * 2);
    }
}

TEST(Ketama, MovesOnlyKeysOfTheServerThatGoes) {
    auto servers = some_servers(5);
    const Ketama before{servers};
    servers.pop_back();
    const Ketama after{servers};
    for (int i = 0; i < 20'000; ++i) {
        const std::size_t then = before.server_of(bytes(some_key(i)));
        if (then == 4) continue;
        ASSERT_EQ(after.server_of(bytes(some_key(i))), then) << some_key(i);
    }
}

TEST(Ketama, GoesByNamesAndNotByTheirOrder) {
    const auto servers = some_servers(6);
    const std::vector<std::string> turned{servers.rbegin(), servers.rend()};
    const Ketama one{servers};
    const Ketama other{turned};
    for (int i = 0; i < 5000; ++i) {
        const auto key = bytes(some_key(i));
        ASSERT_EQ(servers[one.server_of(key)], turned[other.server_of(key)]);
    }
}

TEST(Ketama, RefusesNamesThatTellNothing) {
    EXPECT_THROW(Ketama{std::vector<std::string>{}}, base::Error);
    EXPECT_THROW((Ketama{{"a", ""}}), base::Error);
    EXPECT_THROW((Ketama{{"a", "b", "a"}}), base::Error);
    EXPECT_NO_THROW(Ketama{{"a"}});
}

}  // namespace
}  // namespace millrace::kv
