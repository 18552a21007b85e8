// Two endpoints of one process, each in its own protection domain, connected with each other.
#pragma once

#include "endpoint.hpp"

namespace millrace::conformance {

/// The fixture of most tests: the open device and one protection domain.
class OnDevice : public testing::Test {
  protected:
    Device device;
    Domain domain{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
};

struct Loopback {
    Domain a_domain;
    Domain b_domain;
    Endpoint a;
    Endpoint b;
    Buffer a_memory;
    Buffer b_memory;

    static constexpr std::size_t default_size = 64 * 1024;

    Loopback(const Device& device, const Options& a_options, const Options& b_options,
             std::size_t size = default_size)
        : a_domain{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")},
          b_domain{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")},
          a{device, a_domain.get(), a_options},
          b{device, b_domain.get(), b_options},
          a_memory{a_domain.get(), size, access_for(a_options)},
          b_memory{b_domain.get(), size, access_for(b_options)} {
        a.connect(b.name());
        b.connect(a.name());
    }
    explicit Loopback(const Device& device, const Options& options = {},
                      std::size_t size = default_size)
        : Loopback{device, options, options, size} {}

  private:
    // Not every device registers memory for atomics.
    static unsigned access_for(const Options& options) {
        return IBV_ACCESS_LOCAL_WRITE | (options.access & all_access);
    }
};

/// Options that fail soon when the other side does not answer.
[[nodiscard]] inline Options impatient(Options options = {}) {
    options.timeout = 12;  // 17 ms
    options.retries = 1;
    return options;
}

}  // namespace millrace::conformance
