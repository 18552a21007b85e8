// Opened write ends of a process's bell pipes. Called by peers (Node::peer's objects).
// Not thread-safe by itself.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>

#include "system/descriptor.hpp"

namespace millrace::soft {

class Bells {
  public:
    /// Our descriptor of the pipe that is number `descriptor` in process `pid`; nullptr if that is
    /// no pipe or one that the process has open for one direction only, which is not a bell. Open
    /// as long as somebody has it: channels of peers come and go. Where there is no memory to keep
    /// it, it is rung, and nullptr.
    [[nodiscard]] std::shared_ptr<const Descriptor> open(pid_t pid, int descriptor) noexcept;

  private:
    struct Bell {
        std::weak_ptr<const Descriptor> pipe;
        dev_t device = 0;
        ino_t inode = 0;
    };
    Descriptor folder_;  ///< of the process's descriptors: a name in it costs half of a whole path
    static constexpr std::size_t fewest_swept = 16;
    std::map<int, Bell> bells_;
    /// Those that nobody has any more go when there are as many as this: not at each that is
    /// opened, of thousands.
    std::size_t sweep_at_ = fewest_swept;
};

}  // namespace millrace::soft
