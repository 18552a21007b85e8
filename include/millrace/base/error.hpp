// The error of every floor: what was attempted, on what, why it failed, what to do.
//
// Setup errors throw `Error`. The hot path never throws: it returns `Status` (status.hpp).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// What kind of failure it was, for programs that must react to it.
enum class ErrorCode {
    invalid_argument,    ///< the caller's request can never succeed as written
    not_found,           ///< no such device, address or file
    refused,             ///< nothing listens there, or the listener said no
    timed_out,           ///< the deadline passed
    cancelled,           ///< the caller cancelled
    peer_lost,           ///< the peer died or broke the connection
    closed,              ///< the peer, or this side, closed in good order
    version_mismatch,    ///< the peer speaks another version of the protocol
    protocol,            ///< the peer said something the protocol does not allow
    resource_exhausted,  ///< memory, descriptors, queue pairs, memlock
    permission,          ///< the operating system denied it
    unsupported,         ///< this device or build cannot do it
    system,              ///< another failure of the operating system
    verbs,               ///< another failure of a verbs call
};

/// The name of a code, for logs ("peer_lost").
[[nodiscard]] std::string_view name_of(ErrorCode code) noexcept;

/// An error in four parts. `what()` joins them into one readable line.
class Error : public std::runtime_error {
  public:
    /// `attempted`: a verb phrase ("register memory"); `object`: on what ("4096 bytes at 0x… on
    /// soft0"); `cause`: the exact reason; `remedy`: what the user can do about it (may be empty).
    Error(ErrorCode code, std::string attempted, std::string object, std::string cause,
          std::string remedy);

    [[nodiscard]] ErrorCode code() const noexcept { return code_; }
    [[nodiscard]] const std::string& attempted() const noexcept { return attempted_; }
    [[nodiscard]] const std::string& object() const noexcept { return object_; }
    [[nodiscard]] const std::string& cause() const noexcept { return cause_; }
    [[nodiscard]] const std::string& remedy() const noexcept { return remedy_; }

  private:
    ErrorCode code_;
    std::string attempted_;
    std::string object_;
    std::string cause_;
    std::string remedy_;
};

/// "Cannot allocate memory (ENOMEM)".
[[nodiscard]] std::string describe_errno(int error);

/// The `ErrorCode` that fits an errno value (ENOMEM: resource_exhausted, EPERM: permission, …).
[[nodiscard]] ErrorCode code_of_errno(int error) noexcept;

/// Throws an `Error` whose cause is `describe_errno(error)` and whose code is `code_of_errno`.
[[noreturn]] void throw_errno(int error, std::string attempted, std::string object,
                              std::string remedy = {});

}  // namespace millrace::base
