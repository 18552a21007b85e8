// Stands for abseil's logging where abseil has none (before 2023, so Debian 12's): glog's macros have
// the same names. Included by the sources of google/rdma-unit-test.
#pragma once
#include <glog/logging.h>

// glog 0.6 counts, but has no clock: one message is enough.
#define LOG_EVERY_N_SEC(severity, seconds) LOG_FIRST_N(severity, 1)
