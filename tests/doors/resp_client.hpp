// What the tests of the RESP door share: a client that sees every byte, a server with a door, and
// redis-server.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::kv {

using Words = std::vector<std::string>;

inline base::Deadline in_time() { return base::Deadline::after(test::patience); }

/// As a client sends it.
inline std::string request_of(const Words& words) {
    std::string request = '*' + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
        request += '$' + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    return request;
}

/// A connection to a Unix socket, of which nothing is hidden. What it waits for comes within
/// `patience`, or it throws.
class RawClient {
  public:
    explicit RawClient(const std::string& path) : socket_{::socket(AF_UNIX, SOCK_STREAM, 0)} {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, path.data(), path.size());
        if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
            ::close(socket_);
            throw std::runtime_error{"nobody listens at " + path};
        }
    }
    RawClient(RawClient&& other) noexcept
        : socket_{std::exchange(other.socket_, -1)}, come_{std::move(other.come_)} {}
    RawClient& operator=(RawClient&&) = delete;
    ~RawClient() { end(); }

    /// At once, with whatever is under way.
    void end() {
        if (socket_ >= 0) ::close(std::exchange(socket_, -1));
    }
    [[nodiscard]] int descriptor() const { return socket_; }

    /// False: the server has closed it.
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent <= 0) return false;
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        }
        return true;
    }
    /// The bytes of the next answer; empty: the connection has ended before it.
    std::string answer() {
        std::size_t size = 0;
        while ((size = size_of_answer(come_, 0)) == 0) {
            if (!receive()) return {};
        }
        std::string whole = come_.substr(0, size);
        come_.erase(0, size);
        return whole;
    }
    std::string ask(const Words& words) {
        return send(request_of(words)) ? answer() : std::string{};
    }
    /// All that comes until the server closes the connection.
    std::string rest() {
        while (receive()) {
        }
        return std::exchange(come_, {});
    }
    /// Something has come, or the end.
    [[nodiscard]] bool has_more(int milliseconds) const {
        pollfd readable{socket_, POLLIN, 0};
        return !come_.empty() || ::poll(&readable, 1, milliseconds) == 1;
    }

  private:
    bool receive() {
        pollfd readable{socket_, POLLIN, 0};
        if (::poll(&readable, 1, static_cast<int>(test::patience.count())) != 1) {
            throw std::runtime_error{"no answer came"};
        }
        char bytes[65536];
        const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
        if (got <= 0) return false;
        come_.append(bytes, static_cast<std::size_t>(got));
        return true;
    }
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

    int socket_;
    std::string come_;
};

/// A server in a thread, with a door.
class DoorServing {
  public:
    explicit DoorServing(ServerOptions options = {})
        : server_{Server::listen(connect::Address::unix_socket(folder_.path() + "/own"),
                                 with_door(std::move(options), path()))},
          thread_{[this] {
              server_.adopt();
              (void)server_.serve(base::Deadline::after(std::chrono::seconds{300}));
              server_.adopt();
          }} {}
    ~DoorServing() {
        server_.stop();
        thread_.join();
        server_.adopt();
    }
    [[nodiscard]] std::string path() const { return folder_.path() + "/resp"; }
    [[nodiscard]] RawClient client() const { return RawClient{path()}; }
    [[nodiscard]] Server& server() { return server_; }
    [[nodiscard]] Client own_client() {
        message::ClientOptions options;
        options.transport = connect::Transport::tcp;
        return Client::connect(server_.address(), options, base::Deadline::after(test::patience));
    }
    /// Waits until what the door has counted is so.
    template <class IsSo>
    [[nodiscard]] bool counts(IsSo is_so) {
        const auto deadline = base::Deadline::after(test::patience);
        while (!is_so(server_.resp_stats())) {
            if (deadline.expired()) return false;
            std::this_thread::yield();
        }
        return true;
    }

  private:
    static ServerOptions with_door(ServerOptions options, const std::string& path) {
        options.doors.resp = connect::Address::unix_socket(path);
        // So that valgrind has the addresses that a store asks for.
        options.store.memory_bytes = std::uint64_t{64} << 20;
        // No device is needed for what is tested here.
        options.messages.transports = connect::Transport::tcp;
        return options;
    }
    test::TemporaryFolder folder_;
    Server server_;
    std::thread thread_;
};

/// Debian's redis-server, whose values are as long as this store's.
class RedisServer {
  public:
    /// None: it is not installed.
    [[nodiscard]] static std::unique_ptr<RedisServer> start() {
        if (::access("/usr/bin/redis-server", X_OK) != 0) return nullptr;
        return std::make_unique<RedisServer>();
    }
    RedisServer()
        : process_{test::ChildProcess::start_program(
              {"/usr/bin/redis-server", "--port", "0", "--unixsocket", path(), "--save", "",
               "--appendonly", "no", "--proto-max-bulk-len", "1048576", "--loglevel", "warning",
               "--dir", folder_.path()})} {
        const auto deadline = base::Deadline::after(test::patience);
        while (!deadline.expired()) {
            try {
                (void)client();
                return;
            } catch (const std::runtime_error&) {
                std::this_thread::yield();
            }
        }
        throw std::runtime_error{"redis-server does not listen"};
    }
    [[nodiscard]] std::string path() const { return folder_.path() + "/redis"; }
    [[nodiscard]] RawClient client() const { return RawClient{path()}; }

  private:
    test::TemporaryFolder folder_;
    test::ChildProcess process_;
};

}  // namespace millrace::kv
