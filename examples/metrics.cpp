// Loads that several programs measure, of ten seconds each, for one that collects them.
//     metrics collect 2 unix:@m &  metrics measure unix:@m 1 &  metrics measure unix:@m 2
#include <millrace/flow/fan_in.hpp>
#include <millrace/flow/windowed.hpp>

#include <cstdio>
#include <map>
#include <string_view>

using namespace millrace;
using namespace std::chrono_literals;
using Load = flow::Windowed<unsigned, flow::Summary<double>>;  // of a sensor, in a window

int main(int, char** given) try {
    const auto soon = base::Deadline::after(20s);
    if (std::string_view{given[1]} == "collect") {
        const unsigned programs = std::stoul(given[2]);
        auto loads = flow::FanIn<Load>::listen(given[3], {.expected = programs});
        std::map<std::pair<long, unsigned>, flow::Summary<double>> windows;
        for (Load load; loads.dequeue(load, soon) == base::Status::ok;)
            windows[{load.begin, load.key}].join(load.value);  // what others have measured, too
        for (const auto& [window, all] : windows)
            std::printf("from %ld s, sensor %u: %lu values, mean %.2f\n",
                        window.first / 1'000'000'000, window.second, all.count, all.mean());
        return loads.stats().closed == programs ? 0 : 1;
    }
    auto queue = flow::Producer<Load>::connect(given[2], {}, soon);
    std::chrono::nanoseconds now = 0s;  // this minute is over at once, as the clock is its own
    flow::WindowedProducer loads{std::move(queue),
                                 flow::Window::sliding(10s, 5s),
                                 {.keys = 8, .clock = [&] { return now; }}};
    const double load = std::stod(given[3]);
    for (; now < 60s; now += 10ms)
        for (const unsigned sensor : {0, 1, 2})
            if (loads.enqueue(sensor, load + sensor, soon) != base::Status::ok) return 1;
    return loads.close(soon) == base::Status::ok && loads.stats().sent == 39 ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "metrics: %s\n", error.what());
    return 1;
}
