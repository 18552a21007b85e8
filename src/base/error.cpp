// Error: joins its four parts, and turns errno values into causes and codes.
#include "millrace/base/error.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace millrace::base {

std::string_view name_of(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::not_found: return "not_found";
        case ErrorCode::refused: return "refused";
        case ErrorCode::timed_out: return "timed_out";
        case ErrorCode::cancelled: return "cancelled";
        case ErrorCode::peer_lost: return "peer_lost";
        case ErrorCode::closed: return "closed";
        case ErrorCode::version_mismatch: return "version_mismatch";
        case ErrorCode::protocol: return "protocol";
        case ErrorCode::resource_exhausted: return "resource_exhausted";
        case ErrorCode::permission: return "permission";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::system: return "system";
        case ErrorCode::verbs: return "verbs";
    }
    return "unknown";
}

namespace {

std::string join(const std::string& attempted, const std::string& object, const std::string& cause,
                 const std::string& remedy) {
    std::string line = fmt::format("cannot {}", attempted);
    if (!object.empty()) line += fmt::format(" ({})", object);
    if (!cause.empty()) line += fmt::format(": {}", cause);
    if (!remedy.empty()) line += fmt::format("; {}", remedy);
    return line;
}

}  // namespace

Error::Error(ErrorCode code, std::string attempted, std::string object, std::string cause,
             std::string remedy)
    : std::runtime_error{join(attempted, object, cause, remedy)},
      code_{code},
      attempted_{std::move(attempted)},
      object_{std::move(object)},
      cause_{std::move(cause)},
      remedy_{std::move(remedy)} {}

std::string describe_errno(int error) {
    const char* text = strerrordesc_np(error);
    const char* name = strerrorname_np(error);
    if (text == nullptr || name == nullptr) return fmt::format("Unknown error {}", error);
    return fmt::format("{} ({})", text, name);
}

ErrorCode code_of_errno(int error) noexcept {
    switch (error) {
        case EINVAL:
        case EBADF:
        case EFAULT:
        case EDOM:
        case ERANGE:
        case ENAMETOOLONG:
        case EAFNOSUPPORT:
        case EDESTADDRREQ: return ErrorCode::invalid_argument;
        case ENOENT:
        case ENODEV:
        case ENXIO:
        case ESRCH:
        case EADDRNOTAVAIL:
        case EHOSTUNREACH:
        case ENETUNREACH:
        case ENOTDIR: return ErrorCode::not_found;
        case ECONNREFUSED: return ErrorCode::refused;
        case ETIMEDOUT:
        case ETIME: return ErrorCode::timed_out;
        case ECANCELED: return ErrorCode::cancelled;
        case ECONNRESET:
        case EPIPE:
        case ECONNABORTED:
        case EOWNERDEAD: return ErrorCode::peer_lost;
        case ESHUTDOWN:
        case ENOTCONN: return ErrorCode::closed;
        case EPROTO:
        case EBADMSG: return ErrorCode::protocol;
        case ENOMEM:
        case ENOSPC:
        case EMFILE:
        case ENFILE:
        case EAGAIN:
        case ENOBUFS:
        case EDQUOT: return ErrorCode::resource_exhausted;
        case EPERM:
        case EACCES:
        case EROFS: return ErrorCode::permission;
        case EOPNOTSUPP:
        case ENOSYS:
        case EPROTONOSUPPORT:
        case EPROTOTYPE: return ErrorCode::unsupported;
        default: return ErrorCode::system;
    }
}

void throw_errno(int error, std::string attempted, std::string object, std::string remedy) {
    // Whatever was attempted: only this helps.
    if (error == EMFILE) remedy = "raise the limit of open files (ulimit -n)";
    throw Error{code_of_errno(error), std::move(attempted), std::move(object),
                describe_errno(error), std::move(remedy)};
}

}  // namespace millrace::base
