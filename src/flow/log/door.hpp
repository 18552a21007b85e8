// Where the readers of a log come in, and the hub that its owner sleeps in. A reader has two
// queues, which are told apart by the listener that takes them: requests by the first, items by the
// second. Used by LogEnd and LogReaderEnd.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "log/words.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/consumer.hpp"
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
class LogDoor {
  public:
    LogDoor(const connect::Address& address, const LogOptions& options);

    [[nodiscard]] const connect::Address& address() const noexcept {
        return listeners_.front().address();
    }
    [[nodiscard]] connect::Hub& hub() noexcept { return hub_; }
    /// Throws Error (invalid_argument): the calling thread, or process, is another one.
    void require_owner(const char* attempted) const;
    [[nodiscard]] bool is_of_this_process() const noexcept { return forks_ == base::forks(); }
    /// A look at the kernel is due, each millisecond; or an error, as this is another process.
    [[nodiscard]] bool is_due() const noexcept {
        return must_look_ || !is_of_this_process() || base::ticks() - looked_at_ >= period_;
    }
    /// Looks. True: somebody may have come. Throws Error as require_owner.
    [[nodiscard]] bool look(const char* attempted);
    void rest(const char* attempted, const base::Deadline& deadline);

    [[nodiscard]] std::optional<LogRequests> try_accept_requests();
    [[nodiscard]] std::optional<LogItems> try_accept_items();
    void stop_accepting();

  private:
    Options requests_;
    Options items_;
    connect::Hub hub_;
    std::vector<connect::Listener> listeners_;
    std::vector<connect::Hub::Id> accepting_;
    bool somebody_came_ = false;
    bool must_look_ = true;
    std::uint32_t forks_;
    std::uint64_t looked_at_ = 0;
    std::uint64_t period_;
};

}  // namespace millrace::flow::detail
