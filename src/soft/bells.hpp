// Opened write ends of a process's bell pipes. Called by peers (Node::peer's objects).
// Not thread-safe by itself.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "descriptor.hpp"

namespace millrace::soft {

class Bells {
  public:
    /// Our descriptor of the pipe that is number `descriptor` in process `pid`; -1 if that is no
    /// pipe. Valid as long as this object.
    [[nodiscard]] int open(pid_t pid, int descriptor);

  private:
    struct Bell {
        Descriptor pipe;
        dev_t device = 0;
        ino_t inode = 0;
    };
    std::map<int, Bell> bells_;
    std::vector<Descriptor> replaced_;  ///< somebody may still be about to ring them
};

}  // namespace millrace::soft
