// Where the readers of a log come in, and the hub that its owner sleeps in. A reader has two
// queues, which are told apart by the listener that takes them: requests by the first, items by the
// second. Used by LogEnd and LogReaderEnd.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "log/words.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/door.hpp"
#include "millrace/flow/log_options.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::flow::detail {

using LogRequests = Consumer<LogRequest>;  ///< at the log
using LogItems = Producer<Bytes>;

/// Which listener takes them.
enum class LogQueue : std::uint32_t { requests = 0, items = 1 };

/// How either end's queues are made of the reader's, or the log's, options. Throws Error.
[[nodiscard]] Options log_queue_options(const Options& options, LogQueue queue);
[[nodiscard]] connect::LinkOptions log_link_options(const Options& options, LogQueue queue);

/// One thread: the hub's.
class LogDoor : public OwnersHub {
  public:
    LogDoor(const connect::Address& address, const LogOptions& options);

    [[nodiscard]] const connect::Address& address() const noexcept {
        return listeners_.front().address();
    }
    [[nodiscard]] std::optional<LogRequests> try_accept_requests();
    [[nodiscard]] std::optional<LogItems> try_accept_items();
    void stop_accepting() { stop_watching(); }

  private:
    Options requests_;
    Options items_;
    std::vector<connect::Listener> listeners_;
};

}  // namespace millrace::flow::detail
