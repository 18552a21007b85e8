// The list of all points of the design space, for explicit instantiations and run-time choice.
#pragma once

#include "millrace/ring/design.hpp"

/// DO(design) for every point whose data flow is push1, push2 or pull.
#define MILLRACE_SPACES(DO, DATA, TRANSFER)                                        \
    DO((::millrace::ring::Design{::millrace::ring::DataFlow::DATA,                 \
                                 ::millrace::ring::TransferNotification::TRANSFER, \
                                 ::millrace::ring::SpaceNotification::push}))      \
    DO((::millrace::ring::Design{::millrace::ring::DataFlow::DATA,                 \
                                 ::millrace::ring::TransferNotification::TRANSFER, \
                                 ::millrace::ring::SpaceNotification::pull}))      \
    DO((::millrace::ring::Design{::millrace::ring::DataFlow::DATA,                 \
                                 ::millrace::ring::TransferNotification::TRANSFER, \
                                 ::millrace::ring::SpaceNotification::push2}))
#define MILLRACE_PUSH1_DESIGNS(DO)        \
    MILLRACE_SPACES(DO, push1, watermark) \
    MILLRACE_SPACES(DO, push1, push)      \
    MILLRACE_SPACES(DO, push1, pull)      \
    MILLRACE_SPACES(DO, push1, immediate)
#define MILLRACE_PUSH2_DESIGNS(DO)        \
    MILLRACE_SPACES(DO, push2, watermark) \
    MILLRACE_SPACES(DO, push2, push)      \
    MILLRACE_SPACES(DO, push2, pull)      \
    MILLRACE_SPACES(DO, push2, event)
#define MILLRACE_PULL_DESIGNS(DO)        \
    MILLRACE_SPACES(DO, pull, watermark) \
    MILLRACE_SPACES(DO, pull, push)      \
    MILLRACE_SPACES(DO, pull, pull)
#define MILLRACE_EVERY_DESIGN(DO) \
    MILLRACE_PUSH1_DESIGNS(DO)    \
    MILLRACE_PUSH2_DESIGNS(DO)    \
    MILLRACE_PULL_DESIGNS(DO)
