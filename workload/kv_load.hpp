// Load for a key-value server: clients, each in a thread of its own or many in one, that get and
// set random keys as fast as the answers come, or at a rate. Called by `millrace kv bench` and by
// the measurements.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/histogram.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/client.hpp"

namespace millrace::workload {

struct KvLoad {
    connect::Address server = connect::Address::tcp("127.0.0.1", 7400);
    unsigned clients = 1;
    unsigned threads = 0;  ///< which drive the clients, and never sleep; 0: each has its own
    std::uint32_t outstanding = 1;  ///< requests of a client on their way at a time
    std::chrono::nanoseconds duration = std::chrono::seconds{2};
    std::uint64_t operations = 0;  ///< of all clients, in place of the duration; 0: by time
    /// What all clients together offer, each at times of its own (pace.hpp), and latencies
    /// count from when a request was due. What is due within the duration is sent, however late. 0:
    /// each sends as fast as the answers come.
    double offered_per_second = 0;
    std::uint64_t keys = 100'000;
    std::size_t key_bytes = 16;  ///< 8 at least
    std::size_t value_bytes = 100;
    unsigned get_percent = 95;  ///< the others set
    bool fill = true;           ///< sets every key before it begins
    bool keeps_each = false;    ///< KvLoadResult::each: 16 bytes an operation
    message::ClientOptions client{};
    std::function<void(double part)> filled{};  ///< called now and then while it fills
};

/// One that was answered.
struct KvOperation {
    std::uint64_t begin_ns = 0;  ///< since the clients began
    std::uint32_t ns = 0;        ///< until its answer; 4.29 s at most
    bool is_get = false;
};

struct KvLoadResult {
    std::string carrier;  ///< of the first client's connection; empty: sockets
    double seconds = 0;
    std::uint64_t gets = 0;
    std::uint64_t hits = 0;
    std::uint64_t sets = 0;
    std::vector<std::uint64_t> per_client;       ///< operations
    std::vector<std::vector<KvOperation>> each;  ///< by client, if they are kept
    std::unique_ptr<base::Histogram> get_ns = std::make_unique<base::Histogram>();
    std::unique_ptr<base::Histogram> set_ns = std::make_unique<base::Histogram>();

    [[nodiscard]] std::uint64_t operations() const noexcept { return gets + sets; }
    [[nodiscard]] double per_second() const noexcept {
        return static_cast<double>(operations()) / seconds;
    }
};

/// Sets every key of the load as its clients would do first. Throws Error if one is refused.
void fill_store(const KvLoad& load, kv::Store& store);

/// Every value that comes is compared with what was set. Throws Error: a server that cannot be
/// reached or is lost, an answer that is wrong, an item that is refused.
[[nodiscard]] KvLoadResult run_load(const KvLoad& load);

}  // namespace millrace::workload
