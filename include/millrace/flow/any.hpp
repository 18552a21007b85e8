// Flow queues whose design is chosen at run time, among all 33 points of the design space, each
// with any batching and mover:
//
//     const auto named = ring::parse_design("push1/watermark/pull+fixed16");
//     auto producer = flow::AnyProducer<Item>::connect(named.design, "host:7000",
//                                                      {.ring = {.batch = named.batch}}, deadline);
//
// Each call costs an indirect call more than Producer and Consumer of a fixed design; what travels
// is the same, and either end of a queue may be the one or the other. Including this file makes the
// ends of every design for every item type it is used with, which takes the compiler a while. Where
// several files use one item type, one of them can say `template class AnyProducer<Item>;` and the
// others `extern template class AnyProducer<Item>;`.
#pragma once

#include "millrace/flow/any_consumer.hpp"
#include "millrace/flow/any_producer.hpp"
