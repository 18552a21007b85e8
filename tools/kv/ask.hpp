// What a client asks a key-value server by one command: `millrace kv get`, `set`, and so on.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "command_line/json_output.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::tools {

struct KvAskOptions {
    std::string server = "127.0.0.1:7400";
    /// Several, of which the key says which one is asked: "ADDRESS" or "NAME=ADDRESS"; none:
    /// `server` is asked.
    std::vector<std::string> servers{};
    std::string device{};       ///< empty: the default
    std::string secret_file{};  ///< empty: no secret
    connect::Transport transport = connect::Transport::rc;
    message::Transfer requests = message::Transfer::write;
    message::Transfer answers = message::Transfer::write;
    std::optional<connect::Transport> fallback{};
    std::chrono::nanoseconds timeout = std::chrono::seconds{5};
    std::string key{};
    std::optional<std::string> value{};  ///< set: not given, what standard input says
    std::optional<std::uint64_t> if_version{};
    std::optional<double> expires_seconds{};
    bool show_version = false;
    JsonOutput json{};  ///< stats
};

/// The server of several that has a key. Throws Error (invalid_argument): they are none, or a name
/// is there twice.
[[nodiscard]] std::string server_of(const std::vector<std::string>& servers,
                                    const std::string& key);

/// `word`: "get", "set", "del", "exists", "ping", "stats", "dump", "reset", "exit" or "setopt".
/// Exit status: 0; 1 where the server's answer is not OK, which standard error names. Throws Error
/// if there is no answer.
int run_kv_ask(const std::string& word, const KvAskOptions& options);

}  // namespace millrace::tools
