// What the tests of the memcached door share: a client that sees every byte, and memcached.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "doors/door_client.hpp"

namespace millrace::kv {

/// The line of a storage command, and its data.
inline std::string storing(std::string_view line, std::string_view data) {
    return std::string{line} + ' ' + std::to_string(data.size()) + "\r\n" + std::string{data} +
           "\r\n";
}

class TextClient : public DoorClient {
  public:
    using DoorClient::DoorClient;
    /// Of a server's door.
    explicit TextClient(const DoorServing& serving)
        : DoorClient{serving.path(DoorKind::memcached)} {}

    /// The next line, with its end; empty: the connection has ended before it.
    std::string line() {
        std::size_t end = 0;
        while ((end = come().find('\n')) == std::string::npos) {
            if (!receive()) return {};
        }
        return take(end + 1);
    }
    /// All that is answered to whole requests, of which none is `mn`, nor answered with a line like
    /// its: that marks the end. Empty: nothing, or the connection has ended.
    std::string ask(std::string_view requests) {
        if (!send(std::string{requests} + "mn\r\n")) return {};
        constexpr std::string_view end = "MN\r\n";
        for (;;) {
            const std::string& all = come();
            if (all == end || all.ends_with("\nMN\r\n")) {
                std::string answer = take(all.size());
                answer.resize(answer.size() - end.size());
                return answer;
            }
            if (!receive()) return {};
        }
    }
    std::string set(std::string_view key, std::string_view value) {
        return ask(storing("set " + std::string{key} + " 0 0", value));
    }
};

/// Debian's memcached.
class MemcachedServer {
  public:
    /// None: it is not installed.
    [[nodiscard]] static std::unique_ptr<MemcachedServer> start() {
        return is_installed("memcached") ? std::make_unique<MemcachedServer>() : nullptr;
    }
    [[nodiscard]] TextClient client() const { return TextClient{server_.path()}; }

  private:
    test::TemporaryFolder folder_;
    DebiansServer server_{{"/usr/bin/memcached", "-u", "root", "-U", "0", "-t", "1", "-s"},
                          folder_};
};

}  // namespace millrace::kv
