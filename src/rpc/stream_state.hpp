// A stream at the server: parts that wait for a reader, or readers' requests that wait for parts.
// Shared by the server's thread, which takes those requests, and the sink's. Used by stream.cpp and
// server.cpp.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/message/server.hpp"
#include "millrace/rpc/result.hpp"
#include "server_state.hpp"

namespace millrace::rpc::detail {

inline constexpr std::uint64_t word_of_end = 2;

class StreamState {
  public:
    /// `reply`: of the call itself, the first request for a part.
    StreamState(std::shared_ptr<Pending> pending, std::uint64_t id, message::Reply reply,
                std::size_t most)
        : pending_{std::move(pending)}, most_{most} {
        asking_.push_back({id, std::move(reply)});
    }

    // --- the server's thread

    /// A request for a part. True: it was answered by the end, and the stream is over.
    bool pull(message::Request& request);
    /// The request of this number is not wanted any more. False: it is none of this stream.
    bool give_up(std::uint64_t id);
    void give_up();

    // --- the sink's

    base::Status write(std::vector<std::byte>& part);
    base::Status end(std::optional<Error> error);
    [[nodiscard]] bool is_wanted() const {
        const std::lock_guard guard{mutex_};
        return is_wanted_;
    }

  private:
    struct Asking {
        std::uint64_t id;
        message::Reply reply;
    };
    void give_up_locked();
    void settle(bool answered);

    mutable std::mutex mutex_;  ///< of all that follows
    std::shared_ptr<Pending> pending_;
    std::size_t most_;
    std::deque<Asking> asking_;                 ///< only where no parts wait
    std::deque<std::vector<std::byte>> parts_;  ///< only where nobody asks
    bool has_ended_ = false;
    bool is_wanted_ = true;
    std::optional<Error> error_;
};

}  // namespace millrace::rpc::detail
