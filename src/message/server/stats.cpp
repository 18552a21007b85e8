// What a server counts, on its statistics page and for ServerStats.
#include <cstddef>
#include <iterator>
#include <vector>

#include "server/state.hpp"

namespace millrace::message {

namespace {
struct ShownCount {
    base::Figure figure;
    std::uint64_t ServerStats::*count;
};
constexpr auto counter = base::FigureKind::counter;
constexpr auto gauge = base::FigureKind::gauge;
/// On the page in this order.
constexpr ShownCount shown_counts[] = {{{"clients", gauge}, &ServerStats::clients},
                                       {{"away", gauge}, &ServerStats::away},
                                       {{"joined", counter}, &ServerStats::joined},
                                       {{"left", counter}, &ServerStats::left},
                                       {{"resumed", counter}, &ServerStats::resumed},
                                       {{"refused", counter}, &ServerStats::refused},
                                       {{"misbehaved", counter}, &ServerStats::misbehaved},
                                       {{"requests", counter}, &ServerStats::requests},
                                       {{"answers", counter}, &ServerStats::answers},
                                       {{"deferred", counter}, &ServerStats::deferred},
                                       {{"pending", gauge}, &ServerStats::pending},
                                       {{"failed", counter}, &ServerStats::failed},
                                       {{"overloaded", counter}, &ServerStats::overloaded},
                                       {{"repeated", counter}, &ServerStats::repeated},
                                       {{"large", counter}, &ServerStats::large},
                                       {{"kept back", counter}, &ServerStats::kept_back},
                                       {{"vain looks", counter}, &ServerStats::vain_looks},
                                       {{"sleeps", counter}, &ServerStats::sleeps},
                                       {{"put off", counter}, &ServerStats::put_off},
                                       {{"over budget", counter}, &ServerStats::over_budget}};
static_assert(std::size(shown_counts) * sizeof(std::uint64_t) == sizeof(ServerStats));
}  // namespace

std::vector<base::Figure> figures_of_servers() {
    std::vector<base::Figure> all;
    for (const ShownCount& shown : shown_counts) all.push_back(shown.figure);
    return all;
}

ServerStats& ServerStats::operator+=(const ServerStats& other) noexcept {
    for (const auto& [_, count] : shown_counts) this->*count += other.*count;
    return *this;
}

void Server::State::show() noexcept {
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) statistics.counter(index++).set(counts.*count);
}

ServerStats Server::State::shown() const noexcept {
    ServerStats stats;
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) stats.*count = statistics.counter(index++).value();
    return stats;
}

}  // namespace millrace::message
