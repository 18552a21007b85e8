// What the tests of the RESP door share: a client that sees every byte, and redis-server.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doors/door_client.hpp"

namespace millrace::kv {

using Words = std::vector<std::string>;

/// As a client sends it.
inline std::string request_of(const Words& words) {
    std::string request = '*' + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
        request += '$' + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    return request;
}

class RawClient : public DoorClient {
  public:
    using DoorClient::DoorClient;
    /// Of a server's door.
    explicit RawClient(const DoorServing& serving) : DoorClient{serving.path(DoorKind::resp)} {}

    /// The bytes of the next answer; empty: the connection has ended before it.
    std::string answer() {
        std::size_t size = 0;
        while ((size = size_of_answer(come(), 0)) == 0) {
            if (!receive()) return {};
        }
        return take(size);
    }
    std::string ask(const Words& words) {
        return send(request_of(words)) ? answer() : std::string{};
    }

  private:
    /// Of the answer that begins there, if it is whole; else 0.
    static std::size_t size_of_answer(std::string_view bytes, std::size_t at) {
        const std::size_t end = bytes.find("\r\n", at);
        if (end == std::string_view::npos) return 0;
        const std::size_t behind = end + 2;
        const char kind = bytes[at];
        if (std::string_view{"+-:_,#("}.find(kind) != std::string_view::npos) return behind - at;
        const long count = std::stol(std::string{bytes.substr(at + 1, end - at - 1)});
        if (count < 0) return behind - at;
        if (kind == '$' || kind == '=') {
            const std::size_t whole = behind + static_cast<std::size_t>(count) + 2;
            return bytes.size() < whole ? 0 : whole - at;
        }
        std::size_t next = behind;
        for (long i = 0; i < (kind == '%' ? 2 * count : count); ++i) {
            const std::size_t size = size_of_answer(bytes, next);
            if (size == 0) return 0;
            next += size;
        }
        return next - at;
    }
};

/// Debian's redis-server, whose values are as long as this store's.
class RedisServer {
  public:
    /// None: it is not installed.
    [[nodiscard]] static std::unique_ptr<RedisServer> start() {
        return is_installed("redis-server") ? std::make_unique<RedisServer>() : nullptr;
    }
    [[nodiscard]] RawClient client() const { return RawClient{server_.path()}; }

  private:
    test::TemporaryFolder folder_;
    DebiansServer server_{{"/usr/bin/redis-server", "--port", "0", "--save", "", "--appendonly",
                           "no", "--proto-max-bulk-len", "1048576", "--loglevel", "warning",
                           "--dir", folder_.path(), "--unixsocket"},
                          folder_};
};

}  // namespace millrace::kv
