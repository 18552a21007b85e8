// abseil's CHECK macros by glog's (see log.h), and the one that glog does not have.
#pragma once
#include "absl/log/log.h"

#define CHECK_OK(status) CHECK((status).ok())
