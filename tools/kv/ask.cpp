#include "kv/ask.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cat/interruption.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/ketama.hpp"

namespace millrace::tools {
namespace {

std::vector<std::byte> read_standard_input() {
    std::vector<std::byte> all;
    std::byte block[65536];
    while (true) {
        const ssize_t count = ::read(STDIN_FILENO, block, sizeof block);
        if (count == 0) return all;
        if (count < 0) {
            if (errno == EINTR && !interruption().requested()) continue;
            base::throw_errno(errno, "read a value", "standard input");
        }
        all.insert(all.end(), block, block + count);
        if (all.size() > kv::longest_value) return all;  // refused below
    }
}

void print(std::span<const std::byte> bytes) {
    (void)std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

/// As it stands, if all of it can be shown; else in hexadecimal digits.
std::string shown(std::span<const std::byte> bytes) {
    bool plain = true;
    for (const std::byte one : bytes) plain = plain && one >= std::byte{32} && one < std::byte{127};
    if (plain) return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    std::string digits = "0x";
    for (const std::byte one : bytes) digits += fmt::format("{:02x}", std::to_integer<int>(one));
    return digits;
}

void print_stats(const std::string& lines, const JsonOutput& json) {
    if (!json.wanted()) {
        fmt::print("{}", lines);
        return;
    }
    nlohmann::json document;
    std::istringstream text{lines};
    std::string name;
    std::uint64_t value = 0;
    while (text >> name >> value) document[name] = value;
    json.write(document.dump(2));
}

class Asking {
  public:
    explicit Asking(const KvAskOptions& options)
        : options_{options},
          deadline_{base::Deadline::after(options.timeout).cancelled_by(interruption())},
          client_{kv::Client::connect(connect::Address::parse(options.server),
                                      client_options(options), deadline_)} {}

    kv::Result ask(const std::string& word) {
        const auto key = kv::bytes(options_.key);
        if (word == "get") {
            return client_.get(
                key,
                [](std::span<const std::byte> value) {
                    print(value);
                    // A file or a pipe gets the value alone.
                    if (isatty(STDOUT_FILENO) != 0) fmt::print("\n");
                },
                deadline_);
        }
        if (word == "set") return set(key);
        if (word == "del") return client_.erase(key, deadline_, options_.if_version);
        if (word == "exists") return client_.exists(key, deadline_);
        if (word == "ping") return client_.ping(deadline_);
        if (word == "reset") return client_.reset(deadline_);
        if (word == "exit") return client_.exit(deadline_);
        if (word == "setopt") {
            return client_.set_option(options_.key, options_.value.value_or(""), deadline_);
        }
        if (word == "dump") return dump();
        std::string lines;
        const kv::Result result = client_.stats(lines, deadline_);
        if (result.ok()) print_stats(lines, options_.json);
        return result;
    }
    void close() { (void)client_.close(deadline_); }

    /// Behind the code, for people. Empty: it says enough.
    [[nodiscard]] std::string why(const std::string& word, const kv::Result& result) const {
        switch (result.code) {
            case kv::Code::key_error:
                return options_.key.empty() || options_.key.size() > kv::longest_key
                           ? fmt::format("a key has 1 to {} bytes, and this one {}",
                                         kv::longest_key, options_.key.size())
                           : "there is no such key";
            case kv::Code::store_error:
                return is_too_long_
                           ? fmt::format("a value has at most {} bytes", kv::longest_value)
                           : "the memory of the server is used up (its --memory, --when-full)";
            case kv::Code::conflict:
                return result.version == 0 ? std::string{"there is no such item"}
                                           : fmt::format("the item has version {}", result.version);
            case kv::Code::denied:
                return fmt::format("the server was not started with --permit {}", word);
            case kv::Code::setopt_error:
                return "the one option is sweep, a number from 1 to 100000000";
            default: return {};
        }
    }

  private:
    static message::ClientOptions client_options(const KvAskOptions& options) {
        message::ClientOptions chosen;
        chosen.transport = options.transport;
        chosen.requests = options.requests;
        chosen.answers = options.answers;
        chosen.fallback = options.fallback;
        if (!options.device.empty()) chosen.endpoint = connect::Endpoint::open(options.device);
        if (!options.secret_file.empty()) {
            chosen.admission.secret = connect::read_secret_file(options.secret_file);
        }
        return chosen;
    }
    /// The timeout is for each page.
    kv::Result dump() {
        kv::Result result;
        for (kv::Cursor at = kv::Cursor::begin; result.ok() && at != kv::Cursor::end;) {
            deadline_ = base::Deadline::after(options_.timeout).cancelled_by(interruption());
            result = client_.dump_page(
                at,
                [](const kv::Entry& entry) {
                    fmt::print("{}\t{}\n", shown(entry.key), shown(entry.value));
                },
                deadline_);
        }
        return result;
    }
    kv::Result set(std::span<const std::byte> key) {
        kv::SetOptions how;
        how.if_version = options_.if_version;
        if (options_.expires_seconds) {
            how.expires_after = std::chrono::nanoseconds{
                static_cast<std::int64_t>(*options_.expires_seconds * 1e9)};
        }
        const std::vector<std::byte> read =
            options_.value ? std::vector<std::byte>{} : read_standard_input();
        const std::span<const std::byte> value = options_.value ? kv::bytes(*options_.value) : read;
        is_too_long_ = value.size() > kv::longest_value;
        return client_.set(key, value, deadline_, how);
    }

    const KvAskOptions& options_;
    base::Deadline deadline_;
    kv::Client client_;
    bool is_too_long_ = false;  ///< the value
};

}  // namespace

std::string server_of(const std::vector<std::string>& servers, const std::string& key) {
    std::vector<std::string> names;
    std::vector<std::string> addresses;
    for (const std::string& server : servers) {
        const std::size_t equals = server.find('=');
        names.push_back(server.substr(0, equals));
        addresses.push_back(equals == server.npos ? server : server.substr(equals + 1));
        // As kv::Cluster names it.
        if (equals == server.npos) names.back() = connect::Address::parse(server).to_string();
    }
    return addresses[kv::Ketama{names}.server_of(kv::bytes(key))];
}

int run_kv_ask(const std::string& word, const KvAskOptions& options) {
    options.json.check();
    const Interruption interruptible;
    Asking asking{options};
    const kv::Result result = asking.ask(word);
    asking.close();
    if (result.code == kv::Code::unanswered) {
        throw base::Error{base::ErrorCode::peer_lost, fmt::format("ask for {}", word),
                          options.server,
                          fmt::format("there is no answer: {}", message::name_of(result.outcome)),
                          "see whether the server runs; it may have carried it out"};
    }
    if (!result.ok()) {
        const std::string why = asking.why(word, result);
        fmt::print(stderr, "millrace kv {}: {}{}{}\n", word, kv::name_of(result.code),
                   why.empty() ? "" : ", ", why);
        return 1;
    }
    if (options.show_version) fmt::print(stderr, "version {}\n", result.version);
    if (word == "ping" || word == "exists") fmt::print("{}\n", kv::name_of(result.code));
    return 0;
}

}  // namespace millrace::tools
