// What clients ask of their dispatcher. Used by dispatcher.cpp and path.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "millrace/connect/admission.hpp"
#include "millrace/rpc/dispatcher.hpp"

namespace millrace::rpc {

struct Dispatcher::State {
    explicit State(const DispatcherOptions& chosen);

    /// The number of a connection that stands, to that server and with these options: one that is
    /// there, or a new one. Any thread. Throws Error as message::Dispatcher::join.
    [[nodiscard]] std::uint32_t connect(const connect::Address& address,
                                        message::ClientOptions options,
                                        const base::Deadline& deadline);

    /// One at a time makes it, and the others wait for that.
    struct Shared {
        std::mutex making;
        std::optional<std::uint32_t> number{};  ///< guarded by making
    };

    /// Of connections that are alike. Guarded by mutex.
    [[nodiscard]] std::string key_of(const connect::Address& address,
                                     const message::ClientOptions& chosen);

    DispatcherOptions options;
    message::Dispatcher messages;
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Shared>> connections;  ///< by key, guarded by mutex
    /// What clients named, guarded by mutex: a key has the place here, and not the bytes.
    std::vector<connect::Secret> secrets;
};

}  // namespace millrace::rpc
