// What the C face says of a call that failed: errno, and a text for each thread.
#include <cerrno>
#include <new>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "exs_handles.hpp"

namespace millrace::stream::exs {

using base::ErrorCode;
using base::Status;

namespace {
thread_local std::string last_text;
}  // namespace

const char* last_error() noexcept { return last_text.c_str(); }

int failed(int number, std::string_view text) noexcept {
    try {
        last_text = text;
    } catch (const std::bad_alloc&) {
        last_text.clear();
    }
    errno = number;
    return -1;
}

int errno_of(Status status) noexcept {
    switch (status) {
        case Status::ok: return 0;
        case Status::full: return EAGAIN;
        case Status::empty: return EINVAL;
        case Status::timed_out: return ETIMEDOUT;
        case Status::cancelled: return ECANCELED;
        case Status::closed: return EPIPE;
        case Status::peer_lost: return ECONNRESET;
        case Status::too_large: return EMSGSIZE;
    }
    return EIO;
}

int errno_of(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::invalid_argument: return EINVAL;
        case ErrorCode::not_found: return ENOENT;
        case ErrorCode::refused: return ECONNREFUSED;
        case ErrorCode::timed_out: return ETIMEDOUT;
        case ErrorCode::cancelled: return ECANCELED;
        case ErrorCode::peer_lost: return ECONNRESET;
        case ErrorCode::closed: return EPIPE;
        case ErrorCode::version_mismatch:
        case ErrorCode::protocol: return EPROTO;
        case ErrorCode::resource_exhausted: return ENOMEM;
        case ErrorCode::permission: return EACCES;
        case ErrorCode::unsupported: return EOPNOTSUPP;
        case ErrorCode::system:
        case ErrorCode::verbs: return EIO;
    }
    return EIO;
}

int answer(const exs_socket_state& sock, const char* attempted, Status status) {
    if (status == Status::ok) return 0;
    const std::string why = sock.socket ? sock.socket->failure() : std::string{};
    return failed(errno_of(status), fmt::format("cannot {}: {}{}{}", attempted, name_of(status),
                                                why.empty() ? "" : ": ", why));
}

}  // namespace millrace::stream::exs
