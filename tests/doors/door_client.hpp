// What the tests of the doors share: a connection of which every byte is seen, a server with both
// doors, and the servers of Debian that they are compared with.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/connect/plain_listener.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::kv {

inline base::Deadline in_time() { return base::Deadline::after(test::patience); }

/// A connection to a Unix socket, of which nothing is hidden. What it waits for comes within
/// `patience`, or it throws.
class DoorClient {
  public:
    explicit DoorClient(const std::string& path) : socket_{::socket(AF_UNIX, SOCK_STREAM, 0)} {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, path.data(), path.size());
        if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
            ::close(socket_);
            throw std::runtime_error{"nobody listens at " + path};
        }
    }
    DoorClient(DoorClient&& other) noexcept
        : socket_{std::exchange(other.socket_, -1)}, come_{std::move(other.come_)} {}
    DoorClient& operator=(DoorClient&&) = delete;
    ~DoorClient() { end(); }

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

  protected:
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
    /// What has come, and was not taken.
    [[nodiscard]] const std::string& come() const { return come_; }
    std::string take(std::size_t size) {
        std::string whole = come_.substr(0, size);
        come_.erase(0, size);
        return whole;
    }

  private:
    int socket_;
    std::string come_;
};

/// A server in a thread, with both doors: at Unix sockets, if the options do not say otherwise.
class DoorServing {
  public:
    explicit DoorServing(ServerOptions options = {})
        : server_{Server::listen(connect::Address::unix_socket(folder_.path() + "/own"),
                                 with_doors(std::move(options)))},
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
    [[nodiscard]] std::string path(DoorKind kind = DoorKind::resp) const {
        return folder_.path() + '/' + std::string{name_of(kind)};
    }
    [[nodiscard]] Server& server() { return server_; }
    [[nodiscard]] const Server& server() const { return server_; }
    [[nodiscard]] Client own_client() {
        message::ClientOptions options;
        options.transport = connect::Transport::tcp;
        return Client::connect(server_.address(), options, base::Deadline::after(test::patience));
    }
    /// Waits until what a door has counted is so.
    template <class IsSo>
    [[nodiscard]] bool counts(IsSo is_so, DoorKind kind = DoorKind::resp) {
        const auto deadline = base::Deadline::after(test::patience);
        while (!is_so(server_.door_stats(kind))) {
            if (deadline.expired()) return false;
            std::this_thread::yield();
        }
        return true;
    }

  private:
    ServerOptions with_doors(ServerOptions options) const {
        const auto open = [&](DoorKind kind, std::optional<connect::Address>& where) {
            if (!where) where = connect::Address::unix_socket(path(kind));
        };
        open(DoorKind::resp, options.doors.resp);
        open(DoorKind::memcached, options.doors.memcached);
        // So that valgrind has the addresses that a store asks for.
        options.store.memory_bytes = std::min(options.store.memory_bytes, std::uint64_t{64} << 20);
        // No device is needed for what is tested here.
        options.messages.transports = connect::Transport::tcp;
        return options;
    }
    test::TemporaryFolder folder_;
    Server server_;
    std::thread thread_;
};

inline std::string value_by(Client& client, std::string_view key) {
    std::string value = "none";
    (void)client.get(
        bytes(key),
        [&](std::span<const std::byte> found) {
            value.assign(reinterpret_cast<const char*>(found.data()), found.size());
        },
        in_time());
    return value;
}

inline ServerOptions of_threads(std::uint32_t count) {
    ServerOptions options;
    options.threads.count = count;
    return options;
}

/// A server of Debian's at a Unix socket.
class DebiansServer {
  public:
    /// `words`: the program, and what it is told besides its socket, which follows the last.
    DebiansServer(std::vector<std::string> words, const test::TemporaryFolder& folder)
        : path_{folder.path() + "/debians"}, process_{start(std::move(words), path_)} {
        const auto deadline = base::Deadline::after(test::patience);
        while (!deadline.expired()) {
            try {
                (void)DoorClient{path_};
                return;
            } catch (const std::runtime_error&) {
                std::this_thread::yield();
            }
        }
        throw std::runtime_error{"Debian's server does not listen"};
    }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    static test::ChildProcess start(std::vector<std::string> words, const std::string& path) {
        words.push_back(path);
        return test::ChildProcess::start_program(std::move(words));
    }
    std::string path_;
    test::ChildProcess process_;
};

/// What a program says, and how it ends.
struct Said {
    std::string text;
    test::Exit exit;
};
inline Said run(std::vector<std::string> command) {
    test::ChildProcess process = test::ChildProcess::start_program(std::move(command));
    process.close_input();
    std::string text = process.read_all(std::chrono::seconds{60});
    return {std::move(text), process.wait()};
}
/// That nobody has at the moment.
inline std::string free_tcp_port() {
    const connect::PlainListener listener{connect::Address::parse("127.0.0.1:0")};
    return std::to_string(listener.address().port());
}
inline bool is_installed(const char* program) {
    return ::access((std::string{"/usr/bin/"} + program).c_str(), X_OK) == 0;
}

}  // namespace millrace::kv
