// A client of a key-value server: one request at a time, several, or many at once.
//
//     auto client = kv::Client::connect(address, {}, deadline);
//     kv::Result result = client.set(kv::bytes("name"), kv::bytes("value"), deadline);
//     result = client.get(kv::bytes("name"), [](std::span<const std::byte> value) { … }, deadline);
//
// What became of a request is a Code (protocol.hpp); Code::unanswered says that there is no answer,
// and Result::outcome why: the server may have carried it out then. What lets requests travel, in
// any number and without being carried out twice, is the session beneath (message/client.hpp).
// coroutine.hpp has requests for coroutines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/detail/function_ref.hpp"
#include "millrace/kv/protocol.hpp"
#include "millrace/message/client.hpp"

namespace millrace::kv {

/// A text as the bytes it has.
[[nodiscard]] inline std::span<const std::byte> bytes(std::string_view text) noexcept {
    return std::as_bytes(std::span{text.data(), text.size()});
}

struct Result {
    Code code = Code::ok;
    /// Of the item, after get and set; after a conflict the one that it has. Else 0.
    Version version = 0;
    message::Outcome outcome = message::Outcome::ok;

    [[nodiscard]] bool ok() const noexcept { return code == Code::ok; }
};

/// An answer to a request that was submitted.
struct Answer {
    std::uint64_t id = 0;
    Result result;
    std::span<const std::byte> value{};  ///< until the call that got it returns
};

/// What multi_get hands the answer of one key to, by its index.
using TakeOne =
    FunctionRef<void(std::size_t index, const Result& result, std::span<const std::byte> value)>;

namespace detail {
class AsyncCore;
class ManyKeys;
class Suspended;
}  // namespace detail

/// Move-only; one thread at a time. Keys have 1 to longest_key bytes, values up to longest_value:
/// others are refused here (key_error, store_error), and not sent.
class Client {
  public:
    /// Throws Error as message::Client::connect.
    [[nodiscard]] static Client connect(const connect::Address& address,
                                        message::ClientOptions options,
                                        const base::Deadline& deadline);
    Client(Client&&) noexcept;
    Client& operator=(Client&&) noexcept;
    ~Client();

    // --- one at a time

    /// Hands the value to `take(std::span<const std::byte>)`, in place, if there is one.
    template <class Take>
    Result get(std::span<const std::byte> key, Take&& take, const base::Deadline& deadline) {
        return call(Command::get, {.key = key}, std::forward<Take>(take), deadline);
    }
    /// Replaces `value` by it.
    Result get(std::span<const std::byte> key, std::vector<std::byte>& value,
               const base::Deadline& deadline);
    Result set(std::span<const std::byte> key, std::span<const std::byte> value,
               const base::Deadline& deadline, const SetOptions& options = {});
    Result erase(std::span<const std::byte> key, const base::Deadline& deadline,
                 std::optional<Version> if_version = {});
    Result exists(std::span<const std::byte> key, const base::Deadline& deadline);
    Result ping(const base::Deadline& deadline);
    /// Lines "name value".
    Result stats(std::string& lines, const base::Deadline& deadline);
    /// Of every item; `visit(const Entry&)`. The server must permit it. It goes by pages, between
    /// which the server serves others: an item that is there all the while, as it is, is visited
    /// once; one that is set or removed meanwhile as Store::for_each says.
    template <class Visit>
    Result dump(Visit&& visit, const base::Deadline& deadline) {
        Result result;
        for (Cursor at = Cursor::begin; result.ok() && at != Cursor::end;) {
            result = dump_page(at, visit, deadline);
        }
        return result;
    }
    /// The next page of a dump. `at`: Cursor::begin before the first; moves on, and is Cursor::end
    /// after the last one. What is not `ok` can be asked for again. There may be other requests
    /// between the pages, and any time.
    template <class Visit>
    Result dump_page(Cursor& at, Visit&& visit, const base::Deadline& deadline) {
        const auto asked = pack(DumpRequest{at, dump_page_bytes_});
        std::optional<DumpPage> page;
        const Result result = call(
            Command::dump, {.value = asked},
            [&](std::span<const std::byte> rest) {
                page = parse_dump_page(rest);
                if (!page) return;
                while (const std::optional<Entry> entry = next_of_dump(page->items)) visit(*entry);
            },
            deadline);
        if (!result.ok()) return result;
        // No server sends another; and a dump ends.
        if (!page || !page->items.empty() || page->next <= at) {
            return {.code = Code::unanswered, .outcome = message::Outcome::failed};
        }
        at = page->next;
        return result;
    }
    /// Removes every item; ends the server. The server must permit it.
    Result reset(const base::Deadline& deadline);
    Result exit(const base::Deadline& deadline);
    Result set_option(std::string_view name, std::string_view value,
                      const base::Deadline& deadline);

    /// Any command; `take(std::span<const std::byte>)` gets what the answer says after its code,
    /// if it is `ok`.
    template <class Take>
    Result call(Command command, const RequestParts& parts, Take&& take,
                const base::Deadline& deadline) {
        if (const Code code = check(command, parts); code != Code::ok) return {.code = code};
        Result result{.code = Code::unanswered};
        result.outcome = client_.call(
            size_of(parts), [&](std::span<std::byte> room) { write(parts, room); },
            [&](std::span<const std::byte> payload) {
                std::span<const std::byte> rest;
                result = read(payload, rest);
                if (result.ok()) take(rest);
            },
            deadline, static_cast<std::uint16_t>(command));
        if (result.outcome != message::Outcome::ok) result.code = Code::unanswered;
        return result;
    }

    // --- several at a time

    /// Sends the request; its answer comes by poll() or wait(), in any order. `full`: take answers
    /// first; others as message::Client::submit; `too_large`: its key or value cannot be so.
    base::Status submit(Command command, const RequestParts& parts, std::uint64_t& id);
    /// The same, waiting until it can be sent; answers that come meanwhile are kept.
    base::Status submit(Command command, const RequestParts& parts, std::uint64_t& id,
                        const base::Deadline& deadline);
    /// Hands the next answer to `take(const Answer&)`. As message::Client::poll and wait.
    template <class Take>
    base::Status poll(Take&& take) {
        return client_.poll([&](const message::Answer& answer) { take(translated(answer)); });
    }
    template <class Take>
    base::Status wait(Take&& take, const base::Deadline& deadline) {
        return client_.wait([&](const message::Answer& answer) { take(translated(answer)); },
                            deadline);
    }
    [[nodiscard]] std::size_t outstanding() const noexcept { return client_.outstanding(); }
    /// The answer to `id` is not wanted any more; as message::Client::cancel.
    bool cancel(std::uint64_t id) { return client_.cancel(id); }

    /// Gets many keys at once. Several go in one request where their values are short enough for
    /// several to have room in one answer, and as many requests are on their way as have room.
    /// `take(index, const Result&, std::span<const std::byte> value)` is called once for each, in
    /// any order, and must not use this client. Each is found as by a get() of its own, at some
    /// moment meanwhile. `ok`: for all; otherwise it ended with this, and those that were not
    /// handed out have no answer. Whatever ends it, a `take` that throws too, it leaves nothing:
    /// what has no answer is taken back, as by cancel(). Throws Error (invalid_argument): answers
    /// to other requests are outstanding.
    base::Status multi_get(std::span<const std::span<const std::byte>> keys, TakeOne take,
                           const base::Deadline& deadline);

    // --- the session

    /// Goes on after the end of a connection, as message::Client::reconnect.
    base::Status reconnect(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline) { return client_.close(deadline); }
    [[nodiscard]] int descriptor() { return client_.descriptor(); }
    [[nodiscard]] message::ClientStats stats() const noexcept { return client_.stats(); }
    [[nodiscard]] std::string explain() const { return client_.explain(); }
    [[nodiscard]] std::string failure() const { return client_.failure(); }
    /// The connection beneath, as message::Client::link.
    [[nodiscard]] connect::Link& link() { return client_.link(); }

  private:
    friend class detail::AsyncCore;
    friend class detail::Suspended;
    Client(message::Client client, const message::ClientOptions& options);

    /// Whether a server could carry it out.
    [[nodiscard]] static Code check(Command command, const RequestParts& parts) noexcept;
    /// What a payload says; unanswered, if it cannot be read as an answer.
    [[nodiscard]] static Result read(std::span<const std::byte> payload,
                                     std::span<const std::byte>& rest) noexcept;
    [[nodiscard]] static Answer translated(const message::Answer& answer) noexcept;
    /// Throws Error (invalid_argument).
    void check_nothing_is_outstanding() const;

    message::Client client_;
    bool resumes_;                   ///< its session may go on after the end of a connection
    std::uint32_t dump_page_bytes_;  ///< that answers have room for
    std::unique_ptr<detail::ManyKeys> many_keys_;  ///< of multi_get
};

}  // namespace millrace::kv
