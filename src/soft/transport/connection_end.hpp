// What a process knows of one end of a connection: its own queue pair's, or the peer's, of which
// the block is all there is to know. Made by queue pairs; read by executors and what they are made
// of.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "layout/block_layout.hpp"
#include "layout/news_page.hpp"
#include "layout/receive_pool_layout.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

class ReceivePool;

struct End {
    bool mine = false;  ///< the queue pair belongs to this process
    BlockView block;
    const PathLine* path = nullptr;  ///< of ours, outside of the block
    std::uint32_t qpn = 0;
    std::uint32_t generation = 0;  ///< of its block
    std::uint32_t pd = 0;          ///< of ours; the peer's is read from its block
    std::uint32_t receive_pd = 0;  ///< likewise: what its receives' memory is of
    const std::atomic<std::uint32_t>* access = nullptr;  ///< of ours: what it grants the peer
    ibv_qp_type type = IBV_QPT_RC;  ///< of both ends, or they do not hear each other
    int bell_send = -1;             ///< of ours: the bell pipe's write end
    int bell_receive = -1;
    int bell_async = -1;
    const NewsPlace* news_send = nullptr;  ///< of ours: where completions are announced
    const NewsPlace* news_receive = nullptr;
    /// Of ours: what its block says of these is for the peer, who may have changed it.
    const std::atomic<std::uint64_t>* state_word = nullptr;
    const std::atomic<std::uint32_t>* receive_head = nullptr;  ///< receives polled, and
    const std::atomic<std::uint32_t>* receive_tail = nullptr;  ///< posted
    const StrictSettings* strict = nullptr;                    ///< of both, in mode `strict`
    PoolView pool;                    ///< of its shared receive queue, if it has one
    ReceivePool* own_pool = nullptr;  ///< and its owner's side, if it is ours
};

}  // namespace millrace::soft
