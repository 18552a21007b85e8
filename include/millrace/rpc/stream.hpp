// Answers as streams of parts: a procedure that has a Part in place of a Response.
//
//     struct Watch {
//         static constexpr std::string_view name = "watch";
//         using Request = Key;
//         using Part = Event;
//     };
//     server.handle<Watch>([&](const Key& key, rpc::Sink<Event> sink) { … });   // from any thread:
//     if (sink.write(event) == base::Status::ok) (void)sink.finish();
//
//     auto events = client.open<Watch>({.key = 7}, deadline);
//     for (Event event; events.next(event, deadline) == base::Status::ok;) …
//
// Each part is the answer to one request, so that a session has what it has for every call: the
// call itself asks for the first part, and the reader asks for further ones ahead of what it has
// read (pull_number, whose payload is the stream's number, and a word that is not 0 once it wants
// no more). The client gives that number, in the head of the call (head.hpp): one that no other
// client of its process gives, as some may share a session (dispatcher.hpp). Flow control is the
// window: a server has at most as many parts on their way as the reader asked for. What a sink
// writes beyond waits in the server, up to ProcedureOptions::max_parts; then it is `full`.
//
//   answer   | 1: a part, 2: the end, 3: unknown stream (8 bits) | number (56) | part … |
//
// The number is that of the part, counted from 0, or how many there were before the end. A reader
// compares it with what it has read: whatever happened to the session beneath, a stream that lacks
// parts ends by an error, and never as if it were complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/result.hpp"

namespace millrace::rpc {

namespace detail {

class ClientCore;
class StreamState;

/// Of a part, after its first word, which StreamState::write fills.
template <Carried T>
[[nodiscard]] std::vector<std::byte> part_of(const T& value) {
    const Writer<T> writer{value};
    std::vector<std::byte> bytes(8 + writer.size());
    writer.write(bytes.data() + 8);
    return bytes;
}

/// The writing end without its type.
class SinkCore {
  public:
    SinkCore() noexcept = default;
    explicit SinkCore(std::shared_ptr<StreamState> state) noexcept : state_{std::move(state)} {}
    SinkCore(SinkCore&&) noexcept = default;
    SinkCore& operator=(SinkCore&& other) noexcept;
    SinkCore(const SinkCore&) = delete;
    SinkCore& operator=(const SinkCore&) = delete;
    ~SinkCore();

    base::Status write(std::vector<std::byte> part);
    base::Status write(std::vector<std::byte> part, const base::Deadline& deadline);
    base::Status finish();
    base::Status fail(const Error& error);
    [[nodiscard]] bool is_wanted() const noexcept;

  private:
    std::shared_ptr<StreamState> state_;
};

/// Waits for a part.
class PartWaiter {
  public:
    PartWaiter() noexcept = default;
    PartWaiter(const PartWaiter&) = delete;
    PartWaiter& operator=(const PartWaiter&) = delete;
    virtual void came() = 0;

  protected:
    ~PartWaiter() = default;
};

/// The part of these bytes; false: it is none.
template <Carried T>
[[nodiscard]] bool read_part(std::span<const std::byte> bytes, T& into) {
    try {
        T part{};
        if (!read(bytes, part)) return false;
        into = std::move(part);
        return true;
    } catch (const std::exception&) {
        return false;  // a codec that cannot read it
    }
}

/// The reading end without its type.
class ReaderCore {
  public:
    ReaderCore(ClientCore& client, const base::Deadline& deadline, std::uint32_t ahead);
    ReaderCore(const ReaderCore&) = delete;
    ReaderCore& operator=(const ReaderCore&) = delete;
    ~ReaderCore();

    /// The call was sent: what waits for its answer.
    void opened(std::uint64_t id);
    /// The stream's number, for the head of the call.
    [[nodiscard]] std::uint64_t number() const noexcept;
    /// The next part's bytes, until the next call. As StreamReader::next.
    base::Status next(std::span<const std::byte>& part, const base::Deadline& deadline);
    /// The same without a wait: `empty`, it has not come. Where there was no room to ask for it,
    /// that is done again with each look.
    base::Status take(std::span<const std::byte>& part);
    /// It found no room to ask for the next part.
    [[nodiscard]] bool lacks_room() const noexcept;
    /// What is told, once, when the next part has come; null: nobody.
    void tell(PartWaiter* waiter) noexcept;
    void fail(Code code);
    [[nodiscard]] const Error& error() const noexcept { return error_; }

  private:
    struct Pull;
    struct State;
    std::unique_ptr<State> state_;
    Error error_{.code = Code::ok};
};

}  // namespace detail

/// The writing end of a stream. Move-only; any one thread at a time. Destroyed without finish() or
/// fail(), the reader gets an error that says so. May outlive the server.
template <Carried Part>
class Sink {
  public:
    Sink() noexcept = default;
    explicit Sink(std::shared_ptr<detail::StreamState> state) noexcept : core_{std::move(state)} {}

    /// `ok`; `full`: max_parts wait for a reader that does not ask; `closed`: the stream has ended,
    /// or is not wanted any more. Never blocks.
    base::Status write(const Part& part) { return core_.write(detail::part_of(part)); }
    /// The same, waiting for room: `timed_out`, `cancelled`.
    base::Status write(const Part& part, const base::Deadline& deadline) {
        return core_.write(detail::part_of(part), deadline);
    }
    /// The end, after what was written. `ok`, `closed`.
    base::Status finish() { return core_.finish(); }
    /// The same by an error, which the reader gets after what was written.
    base::Status fail(const Error& error) { return core_.fail(error); }
    base::Status fail(std::string_view text) { return core_.fail({.text = std::string{text}}); }
    /// False: the reader has closed it, or has gone.
    [[nodiscard]] bool is_wanted() const noexcept { return core_.is_wanted(); }

  private:
    detail::SinkCore core_;
};

/// The reading end of a stream. Move-only; belongs to the client's thread, and must not outlive the
/// client. Destroyed before the end, the server is told that it is not wanted.
template <StreamProcedure P>
class StreamReader {
  public:
    using Part = Owned<typename P::Part>;
    explicit StreamReader(std::unique_ptr<detail::ReaderCore> core) noexcept
        : core_{std::move(core)} {}

    /// Waits for the next part, in the order in which they were written; callbacks of other calls
    /// are called meanwhile, as by Client::wait. `ok`; `closed`: the stream has ended well, and all
    /// of its parts were read; `peer_lost`: it has ended otherwise, see error() (where parts were
    /// lost with a session: Code::session_lost); `timed_out`, `cancelled`: of this call,
    /// the stream goes on.
    base::Status next(Part& part, const base::Deadline& deadline) {
        std::span<const std::byte> bytes;
        const base::Status status = core_->next(bytes, deadline);
        if (status != base::Status::ok || detail::read_part(bytes, part)) return status;
        core_->fail(Code::bad_answer);
        return base::Status::peer_lost;
    }
    /// Why the stream has ended; Code::ok while it has not, or where it ended well.
    [[nodiscard]] const Error& error() const noexcept { return core_->error(); }

  private:
    std::unique_ptr<detail::ReaderCore> core_;
};

}  // namespace millrace::rpc
