// What the tests of the server and its clients share: a server in a thread of its own.
#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"

namespace millrace::kv {

/// Generous: it only ends what has failed.
inline base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{30}); }

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
