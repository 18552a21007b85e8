// Times in the RESP door's commands: seconds or milliseconds, from now on or of Unix time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "doors/resp_commands.hpp"

namespace millrace::kv::resp {

enum class TimeUnit : std::uint8_t { seconds, milliseconds, unix_seconds, unix_milliseconds };

/// Of EX, PX, EXAT, PXAT.
[[nodiscard]] std::optional<TimeUnit> time_unit_of(std::string_view word) noexcept;
/// In milliseconds of Unix time; none: it is too far away.
[[nodiscard]] std::optional<std::int64_t> unix_time_of(const RespService& service, TimeUnit unit,
                                                       std::int64_t number) noexcept;
/// The same of a word that has to be more than 0. None, and that is answered.
[[nodiscard]] std::optional<std::int64_t> positive_time(RespCall& call, TimeUnit unit,
                                                        std::string_view word);

}  // namespace millrace::kv::resp
