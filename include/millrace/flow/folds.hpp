// What is made of many values: sums, extremes, counts, or what a program's own operation makes.
// Used with aggregating.hpp and windowed.hpp, and by the consumer that puts parts together.
//
//     flow::Sum<double> total;
//     total.add(2.5);
//     total.join(other);        // of other values, from another producer or an earlier flush
//
// A fold of a program's own has the same two calls: `add` of one value, of whatever type, and
// `join` of another fold, which must be associative: (a + b) + c is a + (b + c).
//
//     struct Longest {
//         std::size_t length = 0;
//         void add(std::string_view name) { length = std::max(length, name.size()); }
//         void join(const Longest& other) { length = std::max(length, other.length); }
//     };
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>

#include "millrace/flow/queue_end.hpp"

namespace millrace::flow {

/// What can be sent of many values: plain, made of no value at first, and it joins.
template <class A>
concept Aggregate = PlainItem<A> && std::default_initializable<A> &&
                    requires(A& all, const A& some) { all.join(some); };

namespace detail {

/// More than any, or less: what a minimum or maximum of nothing is.
template <class V>
inline constexpr V highest =
    std::numeric_limits<V>::has_infinity ? std::numeric_limits<V>::infinity()
                                         : std::numeric_limits<V>::max();
template <class V>
inline constexpr V lowest =
    std::numeric_limits<V>::has_infinity ? -std::numeric_limits<V>::infinity()
                                         : std::numeric_limits<V>::lowest();

}  // namespace detail

template <class V>
struct Sum {
    V sum{};
    void add(const V& value) { sum += value; }
    void join(const Sum& other) { sum += other.sum; }
};

/// Of no value: infinity, or the largest that there is.
template <class V>
struct Min {
    V min = detail::highest<V>;
    void add(const V& value) { min = std::min(min, value); }
    void join(const Min& other) { add(other.min); }
};

/// Of no value: minus infinity, or the smallest that there is.
template <class V>
struct Max {
    V max = detail::lowest<V>;
    void add(const V& value) { max = std::max(max, value); }
    void join(const Max& other) { add(other.max); }
};

struct Count {
    std::uint64_t count = 0;
    template <class V>
    void add(const V& /*value*/) {
        ++count;
    }
    void join(const Count& other) { count += other.count; }
};

/// All of these.
template <class V>
struct Summary {
    std::uint64_t count = 0;
    V sum{};
    V min = detail::highest<V>;
    V max = detail::lowest<V>;

    void add(const V& value) {
        ++count;
        sum += value;
        min = std::min(min, value);
        max = std::max(max, value);
    }
    void join(const Summary& other) {
        count += other.count;
        sum += other.sum;
        min = std::min(min, other.min);
        max = std::max(max, other.max);
    }
    /// Of no value: 0.
    [[nodiscard]] double mean() const {
        return count == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count);
    }
};

/// By an associative operation, as std::bit_or<>: `V(const V&, const V&)`.
template <class V, class Operation>
struct Folded {
    V value{};
    std::uint64_t count = 0;  ///< values; of none, `value` means nothing

    void add(const V& one) {
        value = count == 0 ? one : Operation{}(value, one);
        ++count;
    }
    void join(const Folded& other) {
        if (other.count == 0) return;
        value = count == 0 ? other.value : Operation{}(value, other.value);
        count += other.count;
    }
};

}  // namespace millrace::flow
