// The keys of one multi_get that one server is asked for: which request asks for which of them, and
// whose answer is whose. Used by Client and Cluster.
//
// As many keys go in one request (mget) as the answer is likely to have room for: values are taken
// to be as long as those before them were. What was left out of an answer is asked for once more,
// and its length is known then. Where not even two values fit, and of a server that knows no mget,
// each key goes by a get of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/protocol.hpp"

namespace millrace::kv::detail {

/// Of one client, which keeps it: what it has learnt of the values, and memory, serve the next
/// multi_get. Allocates as many places as there were keys at most.
class ManyKeys {
  public:
    /// Of a client that was made so.
    explicit ManyKeys(const message::ClientOptions& client) noexcept;
    /// Another server may answer from here on.
    void forget_server() noexcept { knows_mget_ = true; }

    /// Forgets what was before. `keys` and what `take` calls stay where they are as long as they
    /// are asked for here.
    void begin(std::span<const std::span<const std::byte>> keys, TakeOne take);
    /// One of the keys, by its index, is this server's. One that is none is handed out at once.
    void add(std::size_t index);

    [[nodiscard]] bool has_more() const noexcept { return next_ != wanted_.size(); }
    [[nodiscard]] bool is_done() const noexcept { return !has_more() && unanswered_ == 0; }
    /// Sends one more request. `full`: take answers first. Otherwise as Client::submit, which waits
    /// if there is a deadline.
    base::Status submit(Client& client, const base::Deadline* deadline);
    /// An answer to any request of that client.
    void take(const Answer& answer);
    /// All that was not handed out gets this result.
    void give_up(const Result& result);
    /// … or is handed out no more.
    void take_back(Client& client) noexcept;

  private:
    struct Wanted {
        std::size_t index;
        std::size_t value_bytes;  ///< `unknown`, until an answer has told
    };
    static constexpr std::size_t unknown = ~std::size_t{0};
    struct Request {
        std::size_t begin;    ///< in `wanted_`
        std::uint32_t count;  ///< 0: it is answered
        bool is_mget;
    };
    /// A request is to be short, compared with the server's ring.
    static constexpr std::size_t most_request_bytes = 4096;
    /// Requests by mget on their way.
    static constexpr std::size_t most_mgets = 3;

    [[nodiscard]] std::uint32_t count_for_next() const noexcept;
    [[nodiscard]] std::size_t expected_bytes(const Wanted& wanted) const noexcept {
        return wanted.value_bytes == unknown ? value_bytes_ : wanted.value_bytes;
    }
    void write_mget(std::uint32_t count);
    void take_several(std::size_t begin, std::uint32_t count, const Answer& answer);
    void hand_out(std::size_t index, const Result& result, std::span<const std::byte> value = {}) {
        (*take_)(index, result, value);
    }
    void learn(std::size_t value_bytes) noexcept;

    const std::size_t answer_bytes_;  ///< of one answer to an mget, at most
    bool knows_mget_ = true;          ///< the server
    std::size_t value_bytes_ = 64;    ///< of a value, about

    std::span<const std::span<const std::byte>> keys_{};
    std::optional<TakeOne> take_;
    std::vector<Wanted> wanted_;
    std::size_t next_ = 0;           ///< of `wanted_`, to be asked for
    std::vector<Request> requests_;  ///< in their order, and so are their numbers
    std::uint64_t first_ = 0;        ///< number of the first
    std::size_t unanswered_ = 0;     ///< of them
    std::size_t mgets_ = 0;          ///< … by mget
    std::vector<std::byte> request_;
};

}  // namespace millrace::kv::detail
