// What AnyProducer and AnyConsumer have in common: an end whose design is chosen at run time, held
// as the type that is compiled for it. Not for use by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::flow::detail {

#define MILLRACE_LISTED(D) D,
inline constexpr std::array every_design{MILLRACE_EVERY_DESIGN(MILLRACE_LISTED)};
#undef MILLRACE_LISTED

/// `End<T, D>` of one D.
template <template <class, ring::Design> class End, class T>
class AnyEnd {
  public:
    [[nodiscard]] static AnyEnd connect(ring::Design design, const connect::Address& address,
                                        Options options, const base::Deadline& deadline) {
        return with_design(design, [&]<ring::Design D>() {
            return AnyEnd{design,
                          End<T, D>::connect_as(design, address, std::move(options), deadline)};
        });
    }
    [[nodiscard]] static AnyEnd accept(ring::Design design, Listener& listener,
                                       const base::Deadline& deadline) {
        return with_design(design, [&]<ring::Design D>() {
            return AnyEnd{design, End<T, D>::accept_as(design, listener, deadline)};
        });
    }
    [[nodiscard]] static std::optional<AnyEnd> try_accept(ring::Design design, Listener& listener) {
        return with_design(design, [&]<ring::Design D>() {
            std::optional<AnyEnd> accepted;
            if (auto end = End<T, D>::try_accept_as(design, listener)) {
                accepted.emplace(AnyEnd{design, std::move(*end)});
            }
            return accepted;
        });
    }

    [[nodiscard]] static AnyEnd over(ring::Design design, Connection connection, Options options,
                                     const base::Deadline& deadline) {
        return with_design(design, [&]<ring::Design D>() {
            return AnyEnd{design, End<T, D>::over_as(design, std::move(connection),
                                                     std::move(options), deadline)};
        });
    }

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    /// What `call` answers of the end: the same type for every design.
    template <class Call>
    decltype(auto) ask(const Call& call) const {
        return [&]<std::size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
            using Answer = std::invoke_result_t<const Call&, End<T, every_design[0]>&>;
            static constexpr Answer (*asked[])(
                void*, const Call&) = {&asked_of<every_design[I], Answer, Call>...};
            return asked[index_](end_.get(), call);
        }(std::make_index_sequence<every_design.size()>{});
    }

  private:
    template <ring::Design D>
    AnyEnd(ring::Design design, End<T, D> end)
        : design_{design},
          index_{
              static_cast<std::size_t>(std::ranges::find(every_design, D) - every_design.begin())},
          end_{new End<T, D>{std::move(end)},
               [](void* of) { delete static_cast<End<T, D>*>(of); }} {}
    template <ring::Design D, class Answer, class Call>
    static Answer asked_of(void* end, const Call& call) {
        return call(*static_cast<End<T, D>*>(end));
    }

    ring::Design design_;
    std::size_t index_;  ///< in every_design, of what end_ is an end of
    std::unique_ptr<void, void (*)(void*)> end_;
};

}  // namespace millrace::flow::detail
