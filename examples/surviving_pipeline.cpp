// Numbers, their squares, their sums: any of the three may be killed at any moment (kill -9) and
// started again. Each number passes once.
//     surviving_pipeline /tmp/numbers unix:/tmp/a &
//     surviving_pipeline /tmp/squares unix:/tmp/b unix:/tmp/a squares &
//     surviving_pipeline /tmp/sums - unix:/tmp/b sums
// What a stage has made is in its log, in files: the end of that is how far it has come.
#include <millrace/flow/log.hpp>
#include <millrace/flow/log_reader.hpp>

#include <cstdio>
#include <optional>
#include <string>

using namespace millrace;
using namespace std::chrono_literals;
using base::Deadline, base::Status;
constexpr std::uint64_t count = 5000;
int main(int arguments, char** argv) try {
    const auto soon = Deadline::after(60s);
    const std::string directory{argv[1]}, here{argv[2]};
    const bool is_last = here == "-";
    auto out = flow::Log<long>::listen(is_last ? "127.0.0.1:0" : here, {.directory = directory});
    const auto end_after = [&](const char* next) {
        const bool is_done = out.wait_acknowledged(count, {next}, soon) == Status::ok;
        return is_done && out.close(soon) != Status::timed_out ? 0 : 1;
    };
    if (arguments == 3) {
        while (out.end() != count) {
            if (out.append(static_cast<long>(out.end() + 1), soon) != Status::ok) return 1;
        }
        return end_after("squares");
    }
    long sum = 0, number = 0;
    (void)out.read(out.end() - 1, sum);  // if there is one
    std::optional<flow::LogReader<long>> in;
    for (Status status = Status::ok; status != Status::closed;) {
        if (!in) try {
                in.emplace(flow::LogReader<long>::connect(
                    argv[3], {.name = argv[4], .from = flow::LogStart::position(out.end())},
                    out.end() == count ? Deadline::after(5s) : soon));
            } catch (const base::Error& error) {
                if (error.code() == base::ErrorCode::peer_lost) continue;  // it was just killed
                if (out.end() != count) throw;
                break;  // it has ended: it knew
            }
        status = in->read(number, Deadline::after(10ms));
        if (status == Status::ok) {
            sum = is_last ? sum + number : number * number;
            if (out.append(sum, soon) != Status::ok) return 1;
        }
        if (out.end() % 100 == 0) (void)in->acknowledge();
        if (status == Status::peer_lost) in.reset();
        (void)out.look_around();
    }
    if (is_last) return std::printf("%ld\n", sum) > 0 ? 0 : 1;
    return end_after("sums");
} catch (const base::Error& error) {
    std::fprintf(stderr, "surviving_pipeline: %s\n", error.what());
    return 1;
}
