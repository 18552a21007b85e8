// A stream at the server: parts that wait for a reader, or readers' requests that wait for parts.
// Shared by the server's thread, which takes those requests, and the sink's. Used by stream.cpp and
// server.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/server.hpp"
#include "millrace/rpc/result.hpp"
#include "server_state.hpp"

namespace millrace::rpc::detail {

/// What the first word of an answer says, in its lowest 8 bits; the others are a number.
enum class PartKind : std::uint64_t {
    part = 1,       ///< the number of this part
    end = 2,        ///< how many parts there were
    no_stream = 3,  ///< the server has none of that number; 0
};
[[nodiscard]] constexpr std::uint64_t word_of(PartKind kind, std::uint64_t number) noexcept {
    return static_cast<std::uint64_t>(kind) | number << 8;
}

class StreamState {
  public:
    /// `reply`: of the call itself, the first request for a part.
    StreamState(std::shared_ptr<Pending> pending, std::uint64_t id, message::Reply reply,
                std::size_t most, std::shared_ptr<message::HeldBytes> held)
        : pending_{std::move(pending)}, most_{most}, part_{std::move(held)} {
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
    /// Keeps it until it is asked for. False: there is no room for it, and it is untouched.
    bool keep(std::vector<std::byte>& part);
    void drop_front() noexcept;
    /// What tells the reader of the end, and how many parts are before it.
    [[nodiscard]] std::array<std::byte, 8> end_word() const noexcept;
    void settle(bool answered);
    /// Tells a reader that asked for a part after the last one of the end, or of the error.
    void tell_end(Asking one, bool fails) const noexcept;

    mutable std::mutex mutex_;  ///< of all that follows
    std::shared_ptr<Pending> pending_;
    std::size_t most_;
    std::deque<Asking> asking_;                 ///< only where no parts wait
    std::deque<std::vector<std::byte>> parts_;  ///< only where nobody asks
    std::size_t parts_bytes_ = 0;
    message::HeldPart part_;     ///< of these
    std::uint64_t written_ = 0;  ///< parts that the sink has written
    bool has_ended_ = false;
    bool is_wanted_ = true;
    std::optional<Error> error_;
};

}  // namespace millrace::rpc::detail
