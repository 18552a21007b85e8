// What a session that resumes keeps of each request until it is answered, so that the request can
// be sent again over another channel. Used by the client's requests (requests.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/message/requester.hpp"

namespace millrace::message {

/// How long a request is waited for, and from when on its server counts that (RequestOptions).
struct RequestLimit {
    base::Clock::time_point point = base::Clock::time_point::max();
    base::Clock::time_point told_from = base::Clock::time_point::min();

    /// As it travels; 0: without limit.
    [[nodiscard]] std::uint32_t in_us() const noexcept {
        if (point == base::Clock::time_point::max()) return 0;
        const base::Clock::time_point from =
            told_from == base::Clock::time_point::min() ? base::Clock::now() : told_from;
        if (point <= from) return 1;
        constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
        const auto left = std::chrono::ceil<std::chrono::microseconds>(point - from);
        return static_cast<std::uint32_t>(std::min<std::int64_t>(left.count(), most));
    }
};

struct RequestCopy {
    std::uint16_t procedure = 0;
    RequestLimit limit{};
    std::vector<std::byte> payload{};
};

/// By places of the window. One thread.
class RequestCopies {
  public:
    void set_up(std::size_t places) { copies_.resize(places); }
    void keep(std::size_t place, std::span<const std::byte> request, const RequestOptions& said) {
        RequestCopy& copy = copies_[place];
        copy.procedure = said.procedure;
        copy.limit = {said.deadline.point(), said.told_from};
        copy.payload.assign(request.begin(), request.end());
    }
    [[nodiscard]] const RequestCopy& at(std::size_t place) const noexcept { return copies_[place]; }

  private:
    std::vector<RequestCopy> copies_;
};

}  // namespace millrace::message
