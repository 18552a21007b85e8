// What all snippets take for granted.
#pragma once

#include <chrono>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"

using namespace millrace;
using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

extern Deadline deadline;
extern connect::Address address;
