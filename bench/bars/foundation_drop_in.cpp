// Bar of the drop-in: Debian's unmodified ib_write_lat on its own private memory, one way as it
// reports it (t_typical), to the same exchange made of bare process_vm_writev calls.
//
// t_typical is the median over the iterations of half the time from one post to the next, with the
// peer's answer seen in memory between them. So is the figure it is compared with. In a loop that
// nobody answers the call is faster than it ever is in an exchange, where the word that it stores
// was just read on the other core, and what it needs of the kernel's memory was, too.
#include <cstdint>

#include "bench/framework/bars.hpp"
#include "bench/limits/copies.hpp"
#include "bench/peers/perftest.hpp"

namespace millrace::bench {
namespace {

/// In nanoseconds.
double ib_write_lat(std::uint64_t iterations) {
    return 1e3 * run_perftest(
                     {.program = "ib_write_lat", .iterations = iterations})[typical_microseconds];
}

const BarRegistration to_process_vm{
    {.group = "foundation",
     .name = "ib_write_lat -s 8, private memory, to process_vm_writev",
     .limit = 1.4,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"ib_write_lat", [] { return ib_write_lat(20'000); }, "ns"});
         rounds.add({"bare", [] { return process_vm_one_way(20'000); }, "ns"});
         return rounds.run().ratio("ib_write_lat", "bare");
     }}};

}  // namespace
}  // namespace millrace::bench
