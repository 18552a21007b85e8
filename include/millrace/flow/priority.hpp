// A producer for items of different urgency (work 000, chapter 1: priority queues, where data are
// produced and consumed in different orders).
//
//     auto work = flow::FanIn<Job>::listen("host:7000", {.levels = 3});
//
//     auto jobs = flow::PriorityProducer<Job>::connect("host:7000", 3, {}, deadline);
//     if (jobs.enqueue(0, job, deadline) != Status::ok) …             // 0 is the most urgent level
//
// Each level has a queue of its own, so an urgent item waits neither for others nor for their
// room. The consumer takes nothing from a level while a more urgent one has something: a busy level
// can starve those below. Within a level, items of one producer come in its order. To the consumer
// its queues are one producer: see FanInOptions::expected and FanIn::on_change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// Move-only; one thread at a time. `T`: an item type, or Bytes.
template <class T, ring::Design D = ring::design_2>
class PriorityProducer {
  public:
    using Item = detail::Given<T>;

    /// Connects to a FanIn with (at least) as many levels. Throws Error as Producer::connect;
    /// refused: it has fewer.
    [[nodiscard]] static PriorityProducer connect(const connect::Address& address,
                                                  std::uint32_t levels, Options options,
                                                  const base::Deadline& deadline) {
        PriorityProducer made;
        options.ring.crew = {.number = base::random_bits(), .size = levels};
        for (std::uint32_t level = 0; level != levels; ++level) {
            options.ring.label = level;
            made.levels_.push_back(Producer<T, D>::connect(address, options, deadline));
        }
        return made;
    }

    [[nodiscard]] std::size_t levels() const noexcept { return levels_.size(); }
    /// The queue of a level, 0 the most urgent, which must be below levels(): its descriptor(),
    /// stats(), claim and commit.
    [[nodiscard]] Producer<T, D>& level(std::size_t level) noexcept { return levels_[level]; }

    /// As Producer's calls of that name. `full` is said of that level alone.
    base::Status try_enqueue(std::size_t level, Item item) {
        return levels_[level].try_enqueue(item);
    }
    base::Status enqueue(std::size_t level, Item item, const base::Deadline& deadline) {
        return levels_[level].enqueue(item, deadline);
    }
    /// As Producer's: the first answer of any level that is not `ok`.
    base::Status look_around() noexcept {
        return each([](auto& one) { return one.look_around(); });
    }
    /// As Producer's, of all levels, the most urgent first: the first answer that is not `ok`,
    /// after all were tried.
    base::Status flush(const base::Deadline& deadline) {
        return each([&](auto& one) { return one.flush(deadline); });
    }
    base::Status close(const base::Deadline& deadline) {
        return each([&](auto& one) { return one.close(deadline); });
    }

  private:
    PriorityProducer() = default;
    template <class Call>
    base::Status each(Call&& call) {
        base::Status first = base::Status::ok;
        for (auto& one : levels_) {
            const base::Status status = call(one);
            if (first == base::Status::ok) first = status;
        }
        return first;
    }
    std::vector<Producer<T, D>> levels_;
};

}  // namespace millrace::flow
