#include "memcached.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/error.hpp"
#include "workload/tcp_socket.hpp"

namespace millrace::bench {
namespace {

std::size_t number_in(std::string_view text) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    require(error == std::errc{} && end == text.data() + text.size(), "a length");
    return number;
}

/// Nothing, and errno: nobody listens there.
std::optional<workload::Descriptor> try_to_connect(const connect::Address& address) {
    std::optional<workload::Descriptor> connected;
    int error = 0;
    if (address.kind() == connect::Address::Kind::unix_socket) {
        workload::Descriptor made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        require(made.get() >= 0, "a socket");
        sockaddr_un to{};
        to.sun_family = AF_UNIX;
        const std::string& path = address.path();
        require(path.size() < sizeof to.sun_path, "a path that a socket can have");
        std::memcpy(to.sun_path, path.data(), path.size());
        socklen_t size = sizeof to;
        if (path.starts_with('@')) {
            to.sun_path[0] = '\0';
            size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
        }
        if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&to), size) == 0) {
            connected = std::move(made);
        } else {
            error = errno;
        }
    } else {
        workload::for_each_address(
            address.host(), address.port(), 0,
            [&](const workload::Descriptor& socket, const addrinfo& to) {
                if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) != 0) {
                    error = errno;
                    return false;
                }
                const int yes = 1;
                ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                connected.emplace(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
                return true;
            });
    }
    if (!connected) {
        errno = error;  // and not that of closing what was tried
        return std::nullopt;
    }
    const timeval limit{5, 0};
    ::setsockopt(connected->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(connected->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return connected;
}

}  // namespace

workload::Descriptor connected_to(const connect::Address& address) {
    std::optional<workload::Descriptor> connected = try_to_connect(address);
    if (!connected) {
        base::throw_errno(errno, "connect to a key-value server", address.to_string(),
                          "start it, or name the address where it listens");
    }
    return std::move(*connected);
}

void WordsClient::send(std::string_view text) {
    send_all(socket_.get(), reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string_view WordsClient::line() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n", at_)) == std::string::npos) receive();
    const std::string_view found{buffer_.data() + at_, end - at_};
    at_ = end + 2;
    return found;
}

std::string_view WordsClient::block(std::size_t count) {
    while (buffer_.size() - at_ < count + 2) receive();
    const std::string_view found{buffer_.data() + at_, count};
    at_ += count + 2;
    return found;
}

void WordsClient::receive() {
    constexpr std::size_t part = 65536;
    const std::size_t before = buffer_.size();
    buffer_.resize(before + part);
    const ssize_t got = ::recv(socket_.get(), buffer_.data() + before, part, 0);
    buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    require(got > 0, "an answer");
}

int WordsClient::server_process() const {
    ucred peer{};
    socklen_t size = sizeof peer;
    require(::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0,
            "the process of a server at a Unix socket");
    return peer.pid;
}

WordsServer::WordsServer(const std::string& program, const std::string& package,
                         std::vector<std::string> arguments, WordsOver over)
    : address_{over == WordsOver::tcp ? connect::Address::tcp("127.0.0.1", free_port())
                                      : connect::Address::unix_socket(fmt::format(
                                            "/tmp/millrace-bench-{}-{}", program, getpid()))} {
    require_program(program, package);
    if (over == WordsOver::tcp) {
        std::replace(arguments.begin(), arguments.end(), std::string{"@port"},
                     std::to_string(address_.port()));
    } else {
        std::filesystem::remove(address_.path());
        std::replace(arguments.begin(), arguments.end(), std::string{"@path"}, address_.path());
    }
    arguments.insert(arguments.begin(), program);
    program_.emplace(std::move(arguments), Environment{}, two_cores().second);
    const auto deadline = patience();
    while (!connect()) {
        if (deadline.expired() || !program_->running()) {
            throw base::Error{base::ErrorCode::timed_out, "measure a key-value server", program,
                              "it does not listen", ""};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
}

WordsServer::~WordsServer() {
    program_.reset();
    if (address_.kind() != connect::Address::Kind::unix_socket) return;
    std::error_code ignored;
    std::filesystem::remove(address_.path(), ignored);
}

WordsClient WordsServer::client() const {
    std::optional<workload::Descriptor> socket = connect();
    require(socket.has_value(), "a connection");
    return WordsClient{std::move(*socket)};
}

std::optional<workload::Descriptor> WordsServer::connect() const {
    return try_to_connect(address_);
}

namespace {

/// `own`, after those that say where clients come.
std::vector<std::string> coming(std::vector<std::string> by_unix, std::vector<std::string> by_tcp,
                                WordsOver over, const std::vector<std::string>& own) {
    std::vector<std::string> all = std::move(over == WordsOver::tcp ? by_tcp : by_unix);
    all.insert(all.end(), own.begin(), own.end());
    return all;
}

}  // namespace

Memcached::Memcached(WordsOver over)
    : WordsServer{"memcached", "memcached",
                  coming({"-s", "@path"}, {"-l", "127.0.0.1", "-p", "@port"}, over,
                         {"-U", "0", "-t", "1", "-m", "1024", "-u", "root", "-c", "20000"}),
                  over} {}

Redis::Redis(WordsOver over)
    : WordsServer{"redis-server", "redis-server",
                  coming({"--unixsocket", "@path", "--port", "0"},
                         {"--bind", "127.0.0.1", "--port", "@port"}, over,
                         {"--save", "", "--appendonly", "no", "--daemonize", "no"}),
                  over} {}

void set(WordsClient& client, std::uint64_t key, std::string_view value) {
    client.send(fmt::format("set {:016} 0 0 {}\r\n{}\r\n", key, value.size(), value));
    require_intact(client.line() == "STORED", "a set");
    client.forget();
}

void fill(WordsClient& client, std::uint64_t keys, std::string_view value) {
    constexpr std::uint64_t batch = 64;
    std::string requests;
    for (std::uint64_t key = 0; key < keys;) {
        requests.clear();
        const std::uint64_t end = std::min(keys, key + batch);
        for (std::uint64_t each = key; each < end; ++each) {
            fmt::format_to(std::back_inserter(requests), "set {:016} 0 0 {}\r\n{}\r\n", each,
                           value.size(), value);
        }
        client.send(requests);
        for (; key < end; ++key) require_intact(client.line() == "STORED", "a set");
        client.forget();
    }
}

double memory_of_memcached(WordsClient& client) {
    double bytes = 0;
    for (const char* what : {"stats\r\n", "stats slabs\r\n"}) {
        client.forget();
        client.send(what);
        for (std::string_view line = client.line(); line != "END"; line = client.line()) {
            for (const std::string_view name : {"STAT hash_bytes ", "STAT total_malloced "}) {
                if (line.starts_with(name)) {
                    bytes += static_cast<double>(number_in(line.substr(name.size())));
                }
            }
        }
    }
    require_intact(bytes > 0, "the stats of memcached");
    return bytes;
}

std::string_view get(WordsClient& client, std::uint64_t key) {
    client.forget();
    client.send(fmt::format("get {:016}\r\n", key));
    return take_get(client);
}

void add_get(std::string& requests, std::uint64_t key) {
    fmt::format_to(std::back_inserter(requests), "get {:016}\r\n", key);
}

std::string_view take_get(WordsClient& client) {
    const std::string_view head = client.line();  // VALUE key flags bytes
    require_intact(head.starts_with("VALUE "), "a get");
    const std::size_t bytes = number_in(head.substr(head.rfind(' ') + 1));
    // The value and the END after it by one call, as what was read may move.
    const std::string_view value = client.block(bytes + 5);
    require_intact(value.ends_with("\r\nEND"), "a get");
    return value.substr(0, bytes);
}

void set_in_redis(WordsClient& client, std::uint64_t key, std::string_view value) {
    client.send(
        fmt::format("*3\r\n$3\r\nSET\r\n$16\r\n{:016}\r\n${}\r\n{}\r\n", key, value.size(), value));
    require_intact(client.line() == "+OK", "a SET");
    client.forget();
}

void add_get_from_redis(std::string& requests, std::uint64_t key) {
    fmt::format_to(std::back_inserter(requests), "*2\r\n$3\r\nGET\r\n$16\r\n{:016}\r\n", key);
}

std::string_view take_get_from_redis(WordsClient& client) {
    const std::string_view head = client.line();
    require_intact(head.starts_with("$"), "a GET");
    return client.block(number_in(head.substr(1)));
}

}  // namespace millrace::bench
