// Both ends of links for the tests of connect/: addresses nobody else uses, an acceptor in a
// thread, a plain socket that says whatever it likes.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect::test {

/// Generous: it only ends tests that have failed.
inline base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{20}); }
inline base::Deadline within(std::chrono::milliseconds time) { return base::Deadline::after(time); }

inline Address fresh_address() {
    static std::atomic<int> count{0};
    return Address::unix_socket("@millrace-connect-test-" + std::to_string(getpid()) + "-" +
                                std::to_string(++count));
}

/// Accepts one peer in a thread of its own.
inline std::future<Link> accept_in_background(Listener& listener) {
    return std::async(std::launch::async, [&listener] { return listener.accept(soon()); });
}

/// Two ends of one link in this process.
struct Pair {
    explicit Pair(LinkOptions options = {}, const Address& where = fresh_address())
        : listener{Listener::listen(where, options)} {
        auto accepted = accept_in_background(listener);
        a.emplace(connect(listener.address(), options, soon()));
        b.emplace(accepted.get());
    }
    Listener listener;
    std::optional<Link> a;
    std::optional<Link> b;
};

/// Waits until `ready` holds; false after a generous while.
inline bool eventually(const std::function<bool()>& ready) {
    base::NapParker naps;
    return base::wait_until(ready, soon(), base::WaitPolicy::blocking(), naps) == base::Status::ok;
}

/// The error that `action` throws; fails the test when it throws none.
template <class Action>
base::Error error_of(Action&& action) {
    try {
        action();
    } catch (const base::Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return base::Error{base::ErrorCode::system, "nothing", "", "", ""};
}

inline std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span{text});
}
inline std::string text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A plain socket: something that is not a link.
class Stranger {
  public:
    explicit Stranger(int descriptor) : descriptor_{descriptor} { EXPECT_GE(descriptor, 0); }
    Stranger(Stranger&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
    Stranger& operator=(Stranger&&) = delete;
    ~Stranger() { hang_up(); }

    static Stranger connect_to(const Address& address) {
        const auto [raw, size] = raw_address(address);
        Stranger stranger{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        EXPECT_EQ(::connect(stranger.descriptor_, reinterpret_cast<const sockaddr*>(&raw), size),
                  0);
        return stranger;
    }
    static Stranger listen_on(const Address& address) {
        const auto [raw, size] = raw_address(address);
        Stranger stranger{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        EXPECT_EQ(::bind(stranger.descriptor_, reinterpret_cast<const sockaddr*>(&raw), size), 0);
        EXPECT_EQ(::listen(stranger.descriptor_, 8), 0);
        return stranger;
    }
    [[nodiscard]] Stranger accept() const {
        return Stranger{accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC)};
    }
    /// As much of it as the socket takes without waiting.
    void say(std::span<const std::byte> what) const {
        (void)send(descriptor_, what.data(), what.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    void say(std::string_view what) const { say(bytes(what)); }
    /// What it hears within a while; empty at the end.
    [[nodiscard]] std::string hear() const {
        pollfd entry{descriptor_, POLLIN, 0};
        if (poll(&entry, 1, 20'000) <= 0) return {};
        char buffer[4096];
        const ssize_t got = recv(descriptor_, buffer, sizeof buffer, 0);
        return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : std::string{};
    }
    /// Everything until the other side hangs up.
    [[nodiscard]] std::string hear_all() const {
        std::string all;
        for (std::string part = hear(); !part.empty(); part = hear()) all += part;
        return all;
    }
    void hang_up() {
        if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
    }

  private:
    static std::pair<sockaddr_un, socklen_t> raw_address(const Address& address) {
        sockaddr_un raw{};
        raw.sun_family = AF_UNIX;
        std::memcpy(raw.sun_path, address.path().data(), address.path().size());
        raw.sun_path[0] = '\0';
        return {raw,
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.path().size())};
    }
    int descriptor_;
};

}  // namespace millrace::connect::test
