// Which of several servers a key belongs to, by consistent hashing: where a server comes or goes,
// the keys of one in so many servers move, and the others stay where they are. Points and hash are
// those of libmemcached with MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED and servers of one weight, so that
// its clients (pylibmc, PHP's memcached, libmemcached's own) go to the same server for a key.
//
//     const kv::Ketama ring{{"10.0.0.1:11211", "10.0.0.2:11211"}};
//     const std::size_t server = ring.server_of(kv::bytes("name"));
//
// Source: libketama (R. Jones, last.fm, 2007); libmemcached 1.1, libmemcached/hosts.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/error.hpp"

namespace millrace::kv {

/// Any number of threads.
class Ketama {
  public:
    /// By their names, as memcached's clients write them: `host:port`. Port 11211 counts as if it
    /// were not there, as with libmemcached. Throws Error (invalid_argument): there are none, more
    /// than 65,536, an empty one, or two alike.
    explicit Ketama(const std::vector<std::string>& names);

    /// Its place among the names. Takes an MD5 of the key, and some 10 steps of a search. Throws
    /// nothing.
    [[nodiscard]] std::size_t server_of(std::span<const std::byte> key) const noexcept;
    [[nodiscard]] std::size_t servers() const noexcept { return servers_; }

  private:
    struct Point {
        std::uint32_t value;
        std::uint32_t server;
    };
    std::size_t servers_;
    std::vector<Point> points_;  ///< by value
};

}  // namespace millrace::kv
