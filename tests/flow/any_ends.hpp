// Ends of any design for the items that several tests use, in this folder and in faults/. They are
// compiled once each, in any_ends/: 33 designs take the compiler a while.
#pragma once

#include <cstdint>

#include "millrace/flow/any.hpp"

namespace millrace::flow {

namespace test {

struct Numbered {
    std::uint64_t number = 0;
    std::uint32_t body[5] = {};

    friend bool operator==(const Numbered&, const Numbered&) = default;
};

}  // namespace test

extern template class AnyProducer<test::Numbered>;
extern template class AnyConsumer<test::Numbered>;
extern template class AnyProducer<Bytes>;
extern template class AnyConsumer<Bytes>;

}  // namespace millrace::flow
