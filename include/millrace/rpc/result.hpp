// How a call ended: the answer, or an error with a code, a number of the program's own, a text and
// bytes.
//
//     const rpc::Result<Value> value = client.call<Get>({.key = 7}, deadline);
//     if (!value) return report(value.error());
//     use(value->bytes);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/language.hpp"
#include "millrace/message/session.hpp"

namespace millrace::rpc {

enum class Code : std::uint8_t {
    ok,
    // Nothing was done:
    overloaded,         ///< too much is under way, at the server or of this procedure or client
    draining,           ///< the server is about to stop
    late,               ///< the deadline had passed when the server came to it
    not_sent,           ///< the connection has ended, or the deadline passed, before it was sent
    unknown_procedure,  ///< the server has none of that name
    mismatch,           ///< it has, with another request or response
    stale_table,        ///< another server answers now than at set-up: reconnect()
    malformed,          ///< the server could not read the request
    // The handler's word:
    failed,  ///< it said so, or threw
    // It may have been executed:
    dropped,       ///< the server let go of the request without an answer
    too_large,     ///< the request, or its answer, is longer than the other side takes
    cancelled,     ///< by the client
    expired,       ///< executed before the connection was lost, and its answer is not kept any more
    session_lost,  ///< the server knows nothing of the session any more
    timed_out,     ///< the deadline passed
    closed,        ///< this end, or the server, has closed
    peer_lost,     ///< the server died, or the connection broke
    bad_answer,    ///< the client could not read the answer
};
[[nodiscard]] std::string_view name_of(Code code) noexcept;
/// The one that says the same. Outcome::failed: `failed`.
[[nodiscard]] Code code_of(message::Outcome outcome) noexcept;
/// Nothing was done, and the same call may succeed a little later: overloaded, draining, not_sent,
/// stale_table.
[[nodiscard]] constexpr bool is_safe_to_repeat(Code code) noexcept {
    return code == Code::overloaded || code == Code::draining || code == Code::not_sent ||
           code == Code::stale_table;
}

/// Text and detail of an error travel in so many bytes, together; what is beyond is cut off, of
/// the detail first.
inline constexpr std::size_t longest_error = 960;

/// What a handler says in place of an answer.
struct Error {
    Code code = Code::failed;
    std::uint32_t number = 0;  ///< means something to the program
    std::string text{};
    std::vector<std::byte> detail{};
};

/// What a handler throws to say an Error; any other exception is `failed` with its what().
class Failure : public std::runtime_error {
  public:
    explicit Failure(Error error) : std::runtime_error{error.text}, error_{std::move(error)} {}
    [[nodiscard]] const Error& error() const noexcept { return error_; }

  private:
    Error error_;
};

/// A T or an Error. An error that is nothing but a code takes no memory.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_{std::move(value)} {}  // NOLINT: converts
    Result(Code code) noexcept : code_{code} {}    // NOLINT: converts
    Result(Error error)                            // NOLINT: converts
        : code_{error.code}, said_{std::make_unique<Error>(std::move(error))} {}

    [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    [[nodiscard]] Code code() const noexcept { return code_; }

    /// Only if it is ok.
    [[nodiscard]] T& operator*() & noexcept { return *value_; }
    [[nodiscard]] const T& operator*() const& noexcept { return *value_; }
    [[nodiscard]] T&& operator*() && noexcept { return *std::move(value_); }
    [[nodiscard]] T* operator->() noexcept { return &*value_; }
    [[nodiscard]] const T* operator->() const noexcept { return &*value_; }
    /// Throws Failure if it is not ok.
    [[nodiscard]] T& value() & {
        if (!ok()) throw Failure{error()};
        return *value_;
    }
    [[nodiscard]] T value() && {
        if (!ok()) throw Failure{error()};
        return *std::move(value_);
    }
    /// It becomes a T that is made anew, to be read into in place.
    T& emplace() {
        code_ = Code::ok;
        said_.reset();
        return value_.emplace();
    }
    [[nodiscard]] Error error() const {
        if (said_ != nullptr) return *said_;
        return {.code = code_, .text = std::string{name_of(code_)}};
    }

  private:
    std::optional<T> value_{};
    Code code_ = Code::ok;
    std::unique_ptr<Error> said_{};
};

}  // namespace millrace::rpc
