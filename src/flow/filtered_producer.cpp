// What a producer says of its consumer's filter.
#include "millrace/flow/filtered_producer.hpp"

#include <fmt/format.h>

#include "millrace/base/log.hpp"

namespace millrace::flow::detail {

std::string sentence_of_thrown(std::string_view filter, std::uint64_t item,
                               std::string_view reason) {
    return fmt::format(
        "the filter '{}', which the consumer has asked for, threw at item {} of those that it "
        "looked at: {}",
        filter, item, reason);
}

void note_thrown(const std::string& peer, const std::string& sentence) noexcept {
    base::log(base::LogLevel::warn, "flow", "{} (queue of {})", sentence, peer);
}

std::string explain_filter(std::string_view filter, std::size_t of, bool stops,
                           const FilterCounts& counts) {
    if (filter.empty()) return fmt::format("filter: none of the {} is asked for\n", of);
    return fmt::format(
        "filter: '{}', as the consumer has asked; looked at {} items, laid {}, threw for {} ({}); "
        "{} bytes of payload stayed here\n",
        filter, counts.looked, counts.passed, counts.threw,
        stops ? "which ends the queue" : "which are left out", counts.bytes_kept);
}

}  // namespace millrace::flow::detail
