// What the tests of the server and its clients share: a server in a thread of its own, and many
// keys.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"

namespace millrace::kv {

/// Generous: it only ends what has failed.
inline base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{30}); }

inline std::vector<std::string> numbered_names(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back("key " + std::to_string(i));
    return names;
}
inline std::vector<std::span<const std::byte>> keys_of(const std::vector<std::string>& names) {
    std::vector<std::span<const std::byte>> keys;
    for (const std::string& name : names) keys.push_back(bytes(name));
    return keys;
}

/// The value of an mget.
inline std::vector<std::byte> mget_of(std::uint32_t answer_bytes,
                                      const std::vector<std::string>& names) {
    std::vector<std::byte> value;
    const auto put = [&](std::span<const std::byte> part) {
        value.insert(value.end(), part.begin(), part.end());
    };
    put(std::as_bytes(std::span{&answer_bytes, 1}));
    for (const std::string& name : names) {
        const auto length = static_cast<std::uint32_t>(name.size());
        put(std::as_bytes(std::span{&length, 1}));
        put(bytes(name));
    }
    return value;
}

/// A server in a thread.
class Serving {
  public:
    explicit Serving(ServerOptions options = {},
                     const connect::Address& address = connect::Address::tcp("127.0.0.1", 0))
        : server_{Server::listen(address, std::move(options))} {
        go_on();
    }
    ~Serving() { stop(); }
    void stop() {
        if (!thread_.joinable()) return;
        server_.stop();
        thread_.join();
        server_.adopt();
    }
    /// From the beginning, and after stop().
    void go_on() {
        thread_ = std::jthread{[this] {
            server_.adopt();
            ended_ = server_.serve(base::Deadline::after(std::chrono::seconds{100}));
        }};
    }
    /// What serve() answered, once a client has ended it.
    base::Status join() {
        thread_.join();
        server_.adopt();
        return ended_;
    }
    [[nodiscard]] Server& server() { return server_; }
    [[nodiscard]] Client client(message::ClientOptions options = {}) {
        return Client::connect(server_.address(), std::move(options), soon());
    }

  private:
    Server server_;
    base::Status ended_ = base::Status::ok;
    std::jthread thread_;
};

}  // namespace millrace::kv
