// What a server does with answers: sends them at once, several in one message to a client that sent
// its requests so; keeps those of a session that resumes; takes those of other threads (Reply); and
// holds back a client for which too many wait.
//
//   answer()    what becomes of a request: an answer of any outcome, once
//   give()      … its way to the client's line
//   clog()      some of what the line took waits for room: flush() tries again, and the client is
//               paused beyond Tuning::max_waiting_bytes
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/message/server.hpp"
#include "server/peer.hpp"
#include "server/reply_queue.hpp"

namespace millrace::message {

/// An error's text, as much of it as is told.
[[nodiscard]] inline std::span<const std::byte> bytes_of_text(std::string_view text) noexcept {
    constexpr std::size_t longest_text = 1000;
    return std::as_bytes(std::span{text.substr(0, longest_text)});
}

/// One thread: the server's.
class Answers {
  public:
    Answers(Server::State& server, connect::Hub& hub, std::size_t places)
        : server_{server}, replies_{std::make_shared<detail::ReplyQueue>(hub)} {
        clogged_.reserve(places);
    }
    /// Replies find no server from here on.
    void end() noexcept { replies_->end(); }

    /// `ok`; `too_large`: its client takes no such answer, and is told so; `closed`: the client has
    /// left.
    base::Status answer(Peer& peer, std::uint64_t id, Outcome outcome,
                        std::span<const std::byte> payload);
    /// Of an answer that is to be given, and of a client with a line.
    [[gnu::noinline]] base::Status give(Peer& peer, const SessionHead& head,
                                        std::span<const std::byte> payload);
    /// Answers in place of the handler: the server is draining, or too much is pending.
    [[gnu::noinline]] void decline(Peer& peer, std::uint64_t id);
    /// Of a request that came again.
    void repeat(Peer& peer, std::uint64_t id);
    /// The client takes a request back.
    void cancel(Peer& peer, std::uint64_t id);
    /// An answer was given to the line.
    void sent(Peer& peer) {
        if (!peer.line.is_clear() || peer.line->has_announced()) [[unlikely]]
            clog(peer);
    }
    /// Memory for an answer that is not laid in place.
    [[nodiscard]] std::span<std::byte> scratch(std::size_t size) {
        scratch_.resize(size);
        return scratch_;
    }
    [[nodiscard]] std::span<const std::byte> scratched(std::size_t size) const noexcept {
        return std::span{scratch_}.first(size);
    }

    // --- answers that come later

    /// A request that will be answered later.
    void defer(Peer& peer, std::uint64_t id) noexcept;
    /// … and is to be answered now. False: it was already, or taken back.
    bool take_deferred(Peer& peer, std::uint64_t id) noexcept;
    /// Nobody answers a client that has left for good. Its program is told (Server::on_unwanted).
    void forget(Peer& peer) noexcept;
    [[nodiscard]] const std::shared_ptr<detail::ReplyQueue>& replies() const noexcept {
        return replies_;
    }
    /// Gives what other threads have answered.
    void take_replies();
    void on_unwanted(std::function<void(ClientId, std::uint64_t)> call) {
        unwanted_ = std::move(call);
    }

    // --- answers to several requests of one message

    /// Where the answer of so many bytes goes in the message of answers to this client, whose
    /// requests of one message are served now. Null: it goes by itself.
    [[gnu::noinline]] std::byte* place_in_next_batch(Peer& peer, std::uint64_t id,
                                                     std::size_t size);
    /// What was laid of these goes.
    void send_batch();
    /// From here to its end answers to this client are laid in one message.
    class Batch {
      public:
        Batch(Answers& answers, Peer& peer) noexcept
            : answers_{&answers}, peer_{&peer}, generation_{peer.id.generation} {
            answers.served_ = &peer;
        }
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;
        /// What was thrown outside of the handler does not hold back what was laid before.
        ~Batch();
        [[nodiscard]] bool is_there() const noexcept {
            return peer_->id.generation == generation_ && peer_->line.has_value();
        }

      private:
        Answers* answers_;
        Peer* peer_;
        std::uint32_t generation_;
    };

    // --- answers that wait for room

    [[nodiscard]] bool has_clogged() const noexcept { return !clogged_.empty(); }
    /// One of whose clients is paused.
    [[nodiscard]] bool has_paused();
    void clog(Peer& peer);
    /// True: some of what waits for room has found it.
    bool flush();
    /// Nobody rings for room. How long to sleep until the next flush(); longer each time, while no
    /// room is found.
    [[nodiscard]] std::chrono::nanoseconds next_nap() noexcept;

  private:
    void commit_batch() noexcept;
    /// Of a client that is paused: so little waits for it that it may ask for more.
    [[nodiscard]] bool may_go_on(const Peer& peer) const noexcept;
    /// How the attempt to send what waits has ended.
    [[nodiscard]] base::Status flush(Peer& peer, bool& has_moved);

    Server::State& server_;
    std::shared_ptr<detail::ReplyQueue> replies_;
    std::vector<std::byte> scratch_;
    Peer* served_ = nullptr;              ///< whose batch is laid
    std::vector<std::uint32_t> clogged_;  ///< places
    std::chrono::nanoseconds nap_{0};     ///< the last one, in vain
    std::function<void(ClientId, std::uint64_t)> unwanted_;
};

}  // namespace millrace::message
