// Bars of kv/: GETs of 100-byte values among 100,000 keys, beside memcached and redis over Unix
// sockets.
#include <string>
#include <utility>

#include "framework/bars.hpp"
#include "kv/measure_kv.hpp"

namespace millrace::bench {
namespace {

const KvCase one_at_a_time{};
const KvCase many{.outstanding = 32, .operations = 200'000};

/// How many times as long the other takes.
Bar faster_than(std::string name, double limit, const KvCase& chosen,
                double (*other)(const KvCase&)) {
    return ratio_bar("kv", std::move(name), limit, Sense::at_least,
                     {"other", [chosen, other] { return other(chosen); }, "ns"},
                     {"ours", [chosen] { return measure_kv(chosen); }, "ns"});
}

const BarRegistration to_memcached{
    faster_than("memcached's GET over a Unix socket to ours, one at a time", 25, one_at_a_time,
                measure_memcached)};
const BarRegistration to_memcached_of_many{faster_than(
    "memcached's GET over a Unix socket to ours, 32 outstanding", 6, many, measure_memcached)};
const BarRegistration to_redis_of_many{
    faster_than("redis' GET over a Unix socket to ours, 32 outstanding", 6, many, measure_redis)};

}  // namespace
}  // namespace millrace::bench
