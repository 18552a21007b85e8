// `millrace bench`: what this machine can do at best, and whether Millrace keeps its promises
// there.
#pragma once

#include "command.hpp"

namespace millrace::tools {

AddCommand add_bench;

}  // namespace millrace::tools
