// The four of work 004, as its figures call them.
#pragma once

#include <string>
#include <vector>

#include "millrace/message/transfer.hpp"

namespace millrace::bench {

struct Combination {
    std::string name;
    message::Transfer requests;
    message::Transfer answers;
};
inline const std::vector<Combination> combinations{
    {"WriteWrite", message::Transfer::write, message::Transfer::write},
    {"SendWrite", message::Transfer::send, message::Transfer::write},
    {"WriteSend", message::Transfer::write, message::Transfer::send},
    {"SendSend", message::Transfer::send, message::Transfer::send},
};

}  // namespace millrace::bench
