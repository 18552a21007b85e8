#include "connections.hpp"

#include <charconv>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/client.hpp"

namespace millrace::bench {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return kv::bytes(text); }
std::string_view text_of(std::span<const std::byte> bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void connection_failed(const std::string& why) {
    throw base::Error{base::ErrorCode::peer_lost, "ask a key-value server", "the connection", why,
                      "see why the server ended"};
}

// --- this library's

class OwnYcsbConnection final : public YcsbConnection {
  public:
    OwnYcsbConnection(const connect::Address& server, connect::Transport transport, bool scans,
                      const base::Deadline& deadline)
        : client_{kv::Client::connect(server, options(transport, scans), deadline)} {}
    ~OwnYcsbConnection() override { (void)client_.close(patience()); }

    YcsbOutcome read(std::string_view key, const TakeValue& take) override {
        return outcome_of(client_.get(bytes_of(key), take, patience()));
    }
    YcsbOutcome write(std::string_view key, std::span<const std::byte> value) override {
        return outcome_of(client_.set(bytes_of(key), value, patience()));
    }
    YcsbOutcome read_several(std::span<const std::string> keys, const TakeOneValue& take) override {
        keys_.clear();
        for (const std::string& key : keys) keys_.push_back(bytes_of(key));
        YcsbOutcome all = YcsbOutcome::ok;
        const base::Status status = client_.multi_get(
            keys_,
            [&](std::size_t index, const kv::Result& result, std::span<const std::byte> value) {
                const YcsbOutcome one = outcome_of(result);
                if (one == YcsbOutcome::ok) {
                    take(index, value);
                } else {
                    all = one;
                }
            },
            patience());
        if (status != base::Status::ok) connection_failed(std::string{base::name_of(status)});
        return all;
    }

  private:
    static message::ClientOptions options(connect::Transport transport, bool scans) {
        message::ClientOptions made;
        made.transport = transport;
        made.window = 1;
        if (scans) {
            // All requests of a scan go together, and all its answers have room, as they have in
            // the buffers of a socket.
            made.window = 128;
            made.gathers_requests = true;
            made.ring_bytes = std::size_t{128} << 10;
        }
        return made;
    }
    static YcsbOutcome outcome_of(const kv::Result& result) {
        if (result.ok()) return YcsbOutcome::ok;
        if (result.code == kv::Code::unanswered) {
            connection_failed(
                fmt::format("there is no answer: {}", message::name_of(result.outcome)));
        }
        return result.code == kv::Code::key_error ? YcsbOutcome::missing : YcsbOutcome::refused;
    }

    kv::Client client_;
    std::vector<std::span<const std::byte>> keys_;
};

// --- those that speak in words

std::size_t count_in(std::string_view text) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) {
        connection_failed(fmt::format("a number was expected, and \"{}\" has come", text));
    }
    return number;
}

class RedisYcsbConnection final : public YcsbConnection {
  public:
    explicit RedisYcsbConnection(WordsClient client) : client_{std::move(client)} {}

    YcsbOutcome read(std::string_view key, const TakeValue& take) override {
        begin(2);
        add("GET");
        add(key);
        send();
        return take_value(take);
    }
    YcsbOutcome write(std::string_view key, std::span<const std::byte> value) override {
        begin(3);
        add("SET");
        add(key);
        add(text_of(value));
        send();
        return client_.line() == "+OK" ? YcsbOutcome::ok : YcsbOutcome::refused;
    }
    YcsbOutcome read_several(std::span<const std::string> keys, const TakeOneValue& take) override {
        begin(keys.size() + 1);
        add("MGET");
        for (const std::string& key : keys) add(key);
        send();
        const std::string_view head = client_.line();
        if (head.starts_with('-')) return YcsbOutcome::refused;
        if (head != fmt::format("*{}", keys.size())) {
            connection_failed(fmt::format("the answer to MGET begins with \"{}\"", head));
        }
        YcsbOutcome all = YcsbOutcome::ok;
        for (std::size_t i = 0; i != keys.size(); ++i) {
            const YcsbOutcome one =
                take_value([&](std::span<const std::byte> value) { take(i, value); });
            if (one != YcsbOutcome::ok) all = one;
        }
        return all;
    }

  private:
    void begin(std::size_t words) {
        client_.forget();
        request_.clear();
        fmt::format_to(std::back_inserter(request_), "*{}\r\n", words);
    }
    void add(std::string_view word) {
        fmt::format_to(std::back_inserter(request_), "${}\r\n", word.size());
        request_.append(word).append("\r\n");
    }
    void send() { client_.send(request_); }
    template <class Take>
    YcsbOutcome take_value(const Take& take) {
        const std::string_view head = client_.line();
        if (head == "$-1") return YcsbOutcome::missing;
        if (!head.starts_with('$')) return YcsbOutcome::refused;
        take(bytes_of(client_.block(count_in(head.substr(1)))));
        return YcsbOutcome::ok;
    }

    WordsClient client_;
    std::string request_;
};

class MemcachedYcsbConnection final : public YcsbConnection {
  public:
    explicit MemcachedYcsbConnection(WordsClient client) : client_{std::move(client)} {}

    YcsbOutcome read(std::string_view key, const TakeValue& take) override {
        client_.forget();
        request_.assign("get ").append(key).append("\r\n");
        client_.send(request_);
        YcsbOutcome outcome = YcsbOutcome::missing;
        return take_values([&](std::string_view, std::span<const std::byte> value) {
            take(value);
            outcome = YcsbOutcome::ok;
        })
                   ? outcome
                   : YcsbOutcome::refused;
    }
    YcsbOutcome write(std::string_view key, std::span<const std::byte> value) override {
        client_.forget();
        request_.clear();
        fmt::format_to(std::back_inserter(request_), "set {} 0 0 {}\r\n", key, value.size());
        request_.append(text_of(value)).append("\r\n");
        client_.send(request_);
        return client_.line() == "STORED" ? YcsbOutcome::ok : YcsbOutcome::refused;
    }
    YcsbOutcome read_several(std::span<const std::string> keys, const TakeOneValue& take) override {
        client_.forget();
        request_.assign("get");
        for (const std::string& key : keys) request_.append(" ").append(key);
        client_.send(request_.append("\r\n"));
        // Those that are there come in the order in which they were asked for.
        std::size_t next = 0;
        std::size_t found = 0;
        const bool was_served =
            take_values([&](std::string_view key, std::span<const std::byte> value) {
                while (next != keys.size() && keys[next] != key) ++next;
                if (next == keys.size()) connection_failed("a key has come that was not asked for");
                take(next++, value);
                ++found;
            });
        if (!was_served) return YcsbOutcome::refused;
        return found == keys.size() ? YcsbOutcome::ok : YcsbOutcome::missing;
    }

  private:
    /// False: it refused.
    template <class Take>
    bool take_values(const Take& take) {
        for (;;) {
            const std::string_view head = client_.line();  // VALUE key flags bytes
            if (head == "END") return true;
            if (!head.starts_with("VALUE ")) return false;
            const std::string_view words = head.substr(std::strlen("VALUE "));
            key_.assign(words.substr(0, words.find(' ')));  // the block may move what was read
            take(key_, bytes_of(client_.block(count_in(head.substr(head.rfind(' ') + 1)))));
        }
    }

    WordsClient client_;
    std::string request_;
    std::string key_;
};

}  // namespace

const YcsbWay* find_ycsb_way(std::string_view name) noexcept {
    for (const YcsbWay& way : ycsb_ways) {
        if (way.name == name) return &way;
    }
    return nullptr;
}

std::unique_ptr<YcsbConnection> ycsb_connection_of(YcsbWay::Protocol protocol, WordsClient socket) {
    if (protocol == YcsbWay::Protocol::redis) {
        return std::make_unique<RedisYcsbConnection>(std::move(socket));
    }
    return std::make_unique<MemcachedYcsbConnection>(std::move(socket));
}

std::unique_ptr<YcsbConnection> connect_ycsb(const YcsbWay& way, const connect::Address& server,
                                             bool scans, const base::Deadline& deadline) {
    if (way.protocol == YcsbWay::Protocol::own) {
        return std::make_unique<OwnYcsbConnection>(server, way.transport, scans, deadline);
    }
    return ycsb_connection_of(way.protocol, WordsClient{connected_to(server)});
}

}  // namespace millrace::bench
