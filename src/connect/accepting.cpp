// Which failures of a peer's setup end the wait for peers, see the header.
#include "millrace/connect/accepting.hpp"

#include <fmt/format.h>

#include "millrace/base/log.hpp"

namespace millrace::connect::detail {

using base::ErrorCode;

bool pass_over(const std::string& peer, const base::Error& error, std::string& last) {
    const ErrorCode code = error.code();
    if (code != ErrorCode::refused && code != ErrorCode::protocol && code != ErrorCode::peer_lost &&
        code != ErrorCode::closed && code != ErrorCode::timed_out) {
        return false;
    }
    base::log(base::LogLevel::warn, "connect", "passed over {}: {}", peer, error.what());
    last = error.what();
    return true;
}

void end_wait(const base::Error& error, std::size_t passed_over, const std::string& last) {
    if (passed_over == 0) throw error;
    throw base::Error{
        error.code(), error.attempted(), error.object(),
        fmt::format("{}, after {} that did not fit, the last of them so: {}", error.cause(),
                    passed_over == 1 ? std::string{"a peer"} : fmt::format("{} peers", passed_over),
                    last),
        error.remedy()};
}

}  // namespace millrace::connect::detail
