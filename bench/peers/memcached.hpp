// memcached and redis as they are packaged, on Unix stream sockets or TCP, and a client that speaks
// their lines, to these or to any server. For comparisons.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/framework/program.hpp"
#include "bench/limits/socket_ends.hpp"
#include "millrace/connect/address.hpp"

namespace millrace::bench {

/// A stream socket to the program that listens there. Calls on it that wait end after five seconds.
/// Throws Error.
[[nodiscard]] workload::Descriptor connected_to(const connect::Address& address);

/// A socket connected to one of them.
class WordsClient {
  public:
    explicit WordsClient(workload::Descriptor socket) noexcept : socket_{std::move(socket)} {}

    void send(std::string_view text);
    /// The next line, without its end. Valid until the next call.
    [[nodiscard]] std::string_view line();
    /// The next `count` bytes, after which a line ends.
    [[nodiscard]] std::string_view block(std::size_t count);
    /// What was read is not needed any more.
    void forget() {
        buffer_.erase(0, at_);
        at_ = 0;
    }
    /// Of the server, if it is a Unix socket.
    [[nodiscard]] int server_process() const;

  private:
    void receive();

    workload::Descriptor socket_;
    std::string buffer_;
    std::size_t at_ = 0;
};

/// Where a program's clients come.
enum class WordsOver { unix_socket, tcp };

/// A program that serves in one thread, on the second core. It ends with this.
class WordsServer {
  public:
    /// `arguments`: where "@path" and "@port" stand, these go. Throws Error (not_found: it is not
    /// installed; timed_out).
    WordsServer(const std::string& program, const std::string& package,
                std::vector<std::string> arguments, WordsOver over = WordsOver::unix_socket);
    ~WordsServer();
    WordsServer(const WordsServer&) = delete;
    WordsServer& operator=(const WordsServer&) = delete;

    [[nodiscard]] WordsClient client() const;
    [[nodiscard]] const connect::Address& address() const noexcept { return address_; }

  private:
    [[nodiscard]] std::optional<workload::Descriptor> connect() const;

    connect::Address address_;
    std::optional<Program> program_;
};

class Memcached : public WordsServer {
  public:
    explicit Memcached(WordsOver over = WordsOver::unix_socket);
};
class Redis : public WordsServer {
  public:
    explicit Redis(WordsOver over = WordsOver::unix_socket);
};

/// In memcached's words. Throw Error if the answer is no success.
void set(WordsClient& client, std::uint64_t key, std::string_view value);
[[nodiscard]] std::string_view get(WordsClient& client, std::uint64_t key);
/// Sets keys 0 to `keys`, many at a time.
void fill(WordsClient& client, std::uint64_t keys, std::string_view value);
/// Bytes that its slabs and its hash table take.
[[nodiscard]] double memory_of_memcached(WordsClient& client);
/// What get() sends, and what it makes of the answer: for several at once.
void add_get(std::string& requests, std::uint64_t key);
[[nodiscard]] std::string_view take_get(WordsClient& client);

/// The same in redis'.
void set_in_redis(WordsClient& client, std::uint64_t key, std::string_view value);
void add_get_from_redis(std::string& requests, std::uint64_t key);
[[nodiscard]] std::string_view take_get_from_redis(WordsClient& client);

}  // namespace millrace::bench
