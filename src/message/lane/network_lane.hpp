// What a lane over packets and one over a socket have in common: how a program's own loop waits for
// it, and how a server hears of many at once. A client's lane waits by itself (its parker). Those
// of a server are heard of all at once: the LaneHost of their kind made them, and tells the places
// of those to which something may have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lane/lane.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::message {

class NetworkLane : public Lane {
  public:
    /// Bytes of a message, its head included, beyond which none is sent.
    static constexpr std::size_t largest_message = 0xffff'0000;

    base::Status look(std::span<const std::byte>& message) final;
    base::Status commit(std::size_t size) noexcept final;
    base::Status try_send(const SessionHead& head, std::span<const std::byte> payload) final;
    base::Status send(const SessionHead& head, std::span<const std::byte> payload) final;
    [[nodiscard]] bool is_clear() const noexcept final { return waiting_bytes() == 0; }

    /// A look may find something although nobody tells of it (any more): a message or the end, or
    /// bytes that the network has still.
    [[nodiscard]] virtual bool has_more() const noexcept = 0;
    /// How the peer has ended (`closed`, `peer_lost`), if that is known although neither look() nor
    /// flush() says so yet: what it sent before is to be read first, and nothing more reaches it.
    [[nodiscard]] virtual base::Status end_of_peer() const noexcept { return base::Status::ok; }

    /// Some of what was committed was not sent yet, as more may follow: a look, or flush(), sends
    /// it.
    [[nodiscard]] virtual bool holds_back() const noexcept = 0;

    [[nodiscard]] int descriptor(const base::WaitPolicy& policy) final;
    void set_place(std::uint32_t place) noexcept final { place_ = place; }
    [[nodiscard]] std::uint32_t place() const noexcept { return place_; }

    base::Status try_close() final;
    [[nodiscard]] std::string failure() const final { return why_failed_; }

  protected:
    /// look(), having taken what the network has for us if no message is here yet. When it answers
    /// `empty`, what waits to be sent is on its way, as far as that is possible.
    virtual base::Status take(std::span<const std::byte>& message) = 0;
    virtual base::Status lay(std::size_t size) noexcept = 0;
    /// send() of what try_send() does not take: it waits here, and what can be sent of it is.
    virtual base::Status keep(const SessionHead& head, std::span<const std::byte> payload) = 0;
    /// One attempt of try_close(), which sees to what comes after the last.
    virtual base::Status finish() = 0;
    /// What becomes readable when the parker's events come: a look is to be had. As long as the
    /// lane lives. Throws Error (resource_exhausted).
    [[nodiscard]] virtual std::span<const int> news() = 0;
    /// When it has to be looked at even if nothing comes (what was sent may have been lost);
    /// time_point::max(): never.
    [[nodiscard]] virtual base::Clock::time_point due() const noexcept {
        return base::Clock::time_point::max();
    }
    void end(base::Status how, std::string_view why) noexcept;

    base::Status ended_ = base::Status::ok;
    std::string why_failed_;

  private:
    void end_rest() noexcept final;
    void rest() noexcept;
    [[nodiscard]] std::unique_ptr<connect::Readiness>& readiness() noexcept final {
        return readiness_;
    }

    std::unique_ptr<connect::Readiness> readiness_;  ///< if a descriptor was asked for
    std::optional<base::Status> closed_;             ///< what try_close() has come to
    std::uint32_t place_ = no_place;
};

/// A server's end of all lanes of one kind: makes them, and hears the network for them. One thread.
class LaneHost {
  public:
    LaneHost() = default;
    LaneHost(const LaneHost&) = delete;
    LaneHost& operator=(const LaneHost&) = delete;
    /// After all of its lanes.
    virtual ~LaneHost() = default;

    /// Of a peer that was accepted and has said its word. Does not wait. Throws Error as
    /// Link::exchange; protocol, refused.
    [[nodiscard]] virtual std::unique_ptr<NetworkLane> meet(connect::Link link) = 0;
    /// Appends the places of lanes to which something may have come since the last time; some of
    /// them several times. Never blocks.
    virtual void look(std::vector<std::uint32_t>& places) = 0;
    /// Readable: look() may find some. Once rest() was called, and until then at any time.
    [[nodiscard]] virtual int descriptor() const noexcept = 0;
    /// The server is about to sleep on descriptor(), after one more look().
    virtual void rest() noexcept = 0;
    /// What it is, in a line.
    [[nodiscard]] virtual std::string explain() const = 0;
};

}  // namespace millrace::message
