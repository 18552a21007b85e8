// What a key-value server counts, for Prometheus: text over HTTP, by a thread of its own. Called by
// `millrace kv serve --metrics`.
//
// It answers one GET of one path, and closes. A library for that (cpp-httplib) brings OpenSSL and
// brotli into every start of the command, 2.5 ms of it: too much for a page of text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "millrace/connect/address.hpp"
#include "millrace/kv/server.hpp"
#include "workload/descriptor.hpp"

namespace millrace::tools {

/// The text format, version 0.0.4. Any thread.
[[nodiscard]] std::string metrics_of(const kv::Server& server);

class MetricsPage {
  public:
    /// Answers at `address` until it is destroyed, before the server. Throws Error: it is none of
    /// TCP, or in use.
    MetricsPage(const connect::Address& address, const kv::Server& server);
    MetricsPage(const MetricsPage&) = delete;
    MetricsPage& operator=(const MetricsPage&) = delete;
    ~MetricsPage();

    /// With the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept { return address_; }

  private:
    void serve() const;

    const kv::Server* server_;
    workload::Descriptor listening_;
    connect::Address address_;
    std::atomic<bool> ends_{false};
    std::thread thread_;
};

}  // namespace millrace::tools
