// See measurements.hpp.
#include "measurements.hpp"

#include <functional>

#include <nlohmann/json.hpp>

#include "bench/framework/report.hpp"

namespace millrace::bench {

namespace {

struct Field {
    const char* name;
    double StreamResult::*value;
};
/// All of a run but its items, as JSON has them.
constexpr Field fields[] = {
    {"seconds", &StreamResult::seconds},
    {"enqueue_ns", &StreamResult::enqueue_ns},
    {"full_ns", &StreamResult::full_ns},
    {"dequeue_ns", &StreamResult::dequeue_ns},
    {"empty_ns", &StreamResult::empty_ns},
    {"full_answers_per_item", &StreamResult::fulls},
    {"empty_answers_per_item", &StreamResult::empties},
    {"transfer_notifications_per_item", &StreamResult::transfer_ratio},
    {"space_notifications_per_item", &StreamResult::space_ratio},
    {"producer_requests_per_item", &StreamResult::producer_requests},
    {"consumer_requests_per_item", &StreamResult::consumer_requests},
    {"consumer_events_per_item", &StreamResult::consumer_events},
    {"producer_system_calls_per_item", &StreamResult::producer_calls},
    {"consumer_system_calls_per_item", &StreamResult::consumer_calls},
    {"retried_per_item", &StreamResult::retried},
    {"dropped_per_item", &StreamResult::dropped},
};

}  // namespace

nlohmann::json json_of(const StreamResult& run) {
    nlohmann::json made{{"items", run.items}};
    for (const Field& field : fields) made[field.name] = run.*field.value;
    return made;
}

StreamResult stream_of(const nlohmann::json& run) {
    StreamResult made;
    made.items = run.at("items").get<std::uint64_t>();
    for (const Field& field : fields) made.*field.value = run.at(field.name).get<double>();
    return made;
}

double value_of(const StreamResult& run, std::size_t item_bytes, Quantity quantity) {
    switch (quantity) {
        case Quantity::megabits:
            return run.items_per_second() * static_cast<double>(item_bytes) * 8 / 1e6;
        case Quantity::items: return run.items_per_second();
        case Quantity::enqueue_us: return run.enqueue_ns / 1e3;
        case Quantity::dequeue_us: return run.dequeue_ns / 1e3;
        case Quantity::transfer_ratio: return run.transfer_ratio;
        case Quantity::space_ratio: return run.space_ratio;
        case Quantity::requests: return run.requests();
        case Quantity::full_us: return run.full_ns / 1e3;
        case Quantity::empty_us: return run.empty_ns / 1e3;
        case Quantity::retried_percent: return run.retried * 100;
        case Quantity::dropped_percent: return run.dropped * 100;
        case Quantity::transfer_us: break;  // no stream tells it
    }
    return 0;
}

std::vector<double> Point::values(Quantity quantity) const {
    std::vector<double> values;
    if (quantity == Quantity::transfer_us) {
        for (const double time : transfers_ns) values.push_back(time / 1e3);
    } else {
        for (const StreamResult& run : streams) {
            const double value = value_of(run, item_bytes, quantity);
            // There was no call that answered so.
            const bool is_of_none =
                value == 0 && (quantity == Quantity::full_us || quantity == Quantity::empty_us);
            if (!is_of_none) values.push_back(value);
        }
    }
    return values;
}

std::optional<Summary> Point::summary(Quantity quantity) const {
    const std::vector<double> all = values(quantity);
    return all.empty() ? std::nullopt : std::optional{summarize(all)};
}

Point& Measurements::at(std::string_view mode, std::string_view contestant,
                        std::size_t item_bytes) {
    Point& point = points_[{std::string{mode}, std::string{contestant}, item_bytes}];
    point.item_bytes = item_bytes;
    return point;
}

const Point* Measurements::find(std::string_view mode, std::string_view contestant,
                                std::size_t item_bytes) const {
    const auto found = points_.find(Key{std::string{mode}, std::string{contestant}, item_bytes});
    return found == points_.end() ? nullptr : &found->second;
}

std::optional<double> Measurements::median(std::string_view mode, std::string_view contestant,
                                           std::size_t item_bytes, Quantity quantity) const {
    const Point* point = find(mode, contestant, item_bytes);
    if (point == nullptr) return std::nullopt;
    const auto summary = point->summary(quantity);
    return summary ? std::optional{summary->median} : std::nullopt;
}

std::size_t Measurements::failures() const {
    std::size_t count = 0;
    for (const auto& [key, point] : points_) count += point.failures.size();
    return count;
}

nlohmann::json Measurements::json() const {
    auto list = nlohmann::json::array();
    for (const auto& [key, point] : points_) {
        const auto& [mode, contestant, item_bytes] = key;
        nlohmann::json entry{
            {"mode", mode}, {"contestant", contestant}, {"item_bytes", item_bytes}};
        for (const Quantity quantity :
             {Quantity::megabits, Quantity::items, Quantity::enqueue_us, Quantity::dequeue_us,
              Quantity::full_us, Quantity::empty_us, Quantity::transfer_ratio,
              Quantity::space_ratio, Quantity::requests, Quantity::retried_percent,
              Quantity::dropped_percent, Quantity::transfer_us}) {
            if (const auto summary = point.summary(quantity)) {
                entry[std::string{key_of(quantity)}] = json_of(*summary);
            }
        }
        auto& runs = entry["runs"] = nlohmann::json::array();
        for (const StreamResult& run : point.streams) {
            runs.push_back(json_of(run));
        }
        entry["transfer_ns"] = point.transfers_ns;
        if (!point.failures.empty()) entry["failures"] = point.failures;
        list.push_back(std::move(entry));
    }
    return list;
}

}  // namespace millrace::bench
