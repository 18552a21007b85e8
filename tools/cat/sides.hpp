// The two sides of `millrace cat`, over a byte stream that is connected.
#pragma once

#include <cstdint>

#include "cat/protocol.hpp"

namespace millrace::tools {

/// What both ends agree that went through.
struct Transferred {
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;
    bool show_checksum = false;  ///< one of the two ends was asked for it
};

/// Reads `input` to its end and sends it. Returns when the receiver has acknowledged everything;
/// throws Error otherwise, having told the receiver why if that can be told.
Transferred send_stream(Peer& peer, int input, bool show_checksum, bool progress);

/// Receives the stream and writes it to `output`, which it closes, as only that tells the last
/// errors. Returns when everything is written and the sender was told; throws as send_stream.
Transferred receive_stream(Peer& peer, int output, bool show_checksum, bool progress);

}  // namespace millrace::tools
