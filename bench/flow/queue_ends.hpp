// The two ends of a flow queue of any design and item size behind one interface, so that the
// drivers of measurements are written once. Each call costs a virtual call. Made by the files that
// CMake makes of ends_of_size.cpp.in, one for each size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::bench {

/// Items carry their number in the first four bytes and, from 8 bytes on, in the last four.
class ProducingEnd {
  public:
    virtual ~ProducingEnd() = default;
    virtual base::Status try_put(std::uint32_t number) = 0;
    virtual base::Status flush(const base::Deadline& deadline) = 0;
    virtual base::Status close(const base::Deadline& deadline) = 0;
    [[nodiscard]] virtual flow::ProducerStats stats() = 0;
};
class ConsumingEnd {
  public:
    virtual ~ConsumingEnd() = default;
    /// Copies the next item out. Throws base::Error if it is not the one with that number.
    virtual base::Status try_take(std::uint32_t number) = 0;
    [[nodiscard]] virtual flow::ConsumerStats stats() = 0;
};

/// How the ends of one size and three flows are made; batching and mover are those of the design
/// that is passed. The accepting side is the measuring one.
struct EndMakers {
    std::unique_ptr<ProducingEnd> (*accept_producer)(ring::Design, flow::Listener&,
                                                     const base::Deadline&);
    std::unique_ptr<ConsumingEnd> (*accept_consumer)(ring::Design, flow::Listener&,
                                                     const base::Deadline&);
    std::unique_ptr<ProducingEnd> (*connect_producer)(ring::Design, const connect::Address&,
                                                      const flow::Options&, const base::Deadline&);
    std::unique_ptr<ConsumingEnd> (*connect_consumer)(ring::Design, const connect::Address&,
                                                      const flow::Options&, const base::Deadline&);
};

/// Null if that design is not built for that size: designs that no figure names are built for
/// `whole_sizes` only.
[[nodiscard]] const EndMakers* ends_of(ring::Design design, std::size_t item_bytes);

/// Sizes for which all points of the design space are built.
inline constexpr std::size_t whole_sizes[] = {8, 64, 512, 4096, 16384, 65536};
/// Those of them that the maps show.
inline constexpr std::size_t map_sizes[] = {8, 64, 4096, 65536};
/// Sizes of the work's figures.
inline constexpr std::size_t figure_sizes[] = {4,    8,    16,   32,   64,    128,   256,  512,
                                               1024, 2048, 4096, 8192, 16384, 32768, 65536};

}  // namespace millrace::bench
