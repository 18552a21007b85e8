// Counts words in several programs: readers send each word to the counter that it belongs to, and
// a counter counts what all readers send it.
//     word_count count 2 unix:@a &  word_count count 2 unix:@b &
//     word_count read one.txt unix:@a unix:@b &  word_count read two.txt unix:@a unix:@b
#include <millrace/flow/fan_in.hpp>
#include <millrace/flow/fan_out.hpp>

#include <fstream>
#include <iostream>
#include <map>

using namespace millrace;

int main(int, char** given) try {
    const auto soon = base::Deadline::after(std::chrono::seconds{20});
    if (std::string_view{given[1]} == "count") {
        const auto readers = static_cast<std::uint32_t>(std::stoul(given[2]));
        auto words = flow::FanIn<flow::Bytes>::listen(given[3], {.expected = readers});
        std::map<std::string, int> counts;
        std::vector<std::byte> word;
        while (words.dequeue(word, soon) == base::Status::ok) {
            ++counts[{reinterpret_cast<const char*>(word.data()), word.size()}];
        }
        for (const auto& [text, times] : counts) std::cout << times << ' ' << text << '\n';
        return words.stats().closed == readers ? 0 : 1;
    }
    std::vector<connect::Address> counters;
    for (char** one = given + 3; *one; ++one) counters.push_back(*one);
    auto words = flow::FanOut<flow::Bytes>::connect(counters, {}, soon);
    std::ifstream file{given[2]};
    for (std::string word; file >> word;) {
        const std::uint64_t key = std::hash<std::string>{}(word);
        if (words.enqueue_keyed(key, std::as_bytes(std::span{word}), soon) != base::Status::ok)
            return 1;
    }
    return words.close(soon) == base::Status::ok ? 0 : 1;
} catch (const std::exception& error) {
    std::cerr << "word_count: " << error.what() << '\n';
    return 1;
}
