// What carries a client's calls: a connection of its own, or a port of a dispatcher's. The calls of
// message::Client, for whichever it is. Used by client.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/rpc/design.hpp"
#include "millrace/rpc/dispatcher.hpp"

namespace millrace::rpc::detail {

class Path {
  public:
    explicit Path(message::Client own) noexcept : own_{std::move(own)} {}
    /// Throws Error as message::Client::connect, and message::Dispatcher::port.
    Path(std::shared_ptr<Dispatcher> dispatcher, connect::Address address,
         const message::ClientOptions& options, const base::Deadline& deadline);

    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const message::RequestOptions& said) {
        return use(base::Status::closed,
                   [&](auto& way) { return way.submit(size, fill, id, said); });
    }
    template <class Fill>
    base::Status submit(std::size_t size, Fill&& fill, std::uint64_t& id,
                        const base::Deadline& deadline, const message::RequestOptions& said) {
        return use(base::Status::closed,
                   [&](auto& way) { return way.submit(size, fill, id, deadline, said); });
    }
    template <class Fill, class Take>
    message::Outcome call(std::size_t size, Fill&& fill, Take&& take,
                          const message::RequestOptions& said) {
        return use(message::Outcome::closed,
                   [&](auto& way) { return way.call(size, fill, take, said); });
    }
    /// Of bytes as they are: the shortest way.
    base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                        const message::RequestOptions& said) {
        return use(base::Status::closed, [&](auto& way) { return way.submit(request, id, said); });
    }
    template <class Take>
    message::Outcome answer_to(std::uint64_t id, Take&& take, const base::Deadline& deadline) {
        return use(message::Outcome::closed,
                   [&](auto& way) { return way.answer_to(id, take, deadline); });
    }
    template <class Take>
    base::Status poll(Take&& take) {
        return use(base::Status::closed, [&](auto& way) { return way.poll(take); });
    }
    template <class Take>
    base::Status wait(Take&& take, const base::Deadline& deadline) {
        return use(base::Status::closed, [&](auto& way) { return way.wait(take, deadline); });
    }
    bool cancel(std::uint64_t id) {
        return use(false, [&](auto& way) { return way.cancel(id); });
    }

    /// As message::Client. Of a dispatcher's: a new connection, unless another client has made one
    /// since.
    base::Status reconnect(const base::Deadline& deadline);
    /// Of a dispatcher's: the port leaves, and the connection stays for the others.
    base::Status close(const base::Deadline& deadline);
    [[nodiscard]] int descriptor();
    /// Zeroes of a dispatcher's, which has its own.
    [[nodiscard]] message::ClientStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;
    [[nodiscard]] bool is_shared() const noexcept { return !own_.has_value(); }

  private:
    template <class Answer, class Use>
    Answer use(Answer closed, Use&& how) {
        if (own_.has_value()) [[likely]]
            return how(*own_);
        return port_.has_value() ? how(*port_) : closed;
    }

    std::optional<message::Client> own_{};
    std::shared_ptr<Dispatcher> dispatcher_{};  // before port_, which is of it
    std::optional<message::Port> port_{};       ///< nothing: closed
    std::uint32_t number_ = 0;                  ///< of the connection that it goes to
    connect::Address address_{};
    message::ClientOptions options_{};
};

}  // namespace millrace::rpc::detail
