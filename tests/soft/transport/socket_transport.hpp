// A transport for tests: requests travel as bytes through a socket, and the process at its other
// end executes them. It proves that queue pairs do without shared memory between their processes;
// it is no device: what is lost stays lost, and who does not poll does not serve.
//
// A message of the socket (SOCK_SEQPACKET) is a Head and the payload:
//
//     request    what a work request says; payload of a WRITE, SEND or datagram
//     response   to the oldest request without one: its status; payload of a READ or an atomic
//     datagram   as a request, for queue pair `qpn`; nobody answers
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "completion/completion_ring.hpp"
#include "datagram/datagram_target.hpp"
#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "layout/hazard.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "transport/executor.hpp"
#include "transport/key_cache.hpp"
#include "transport/pieces.hpp"
#include "transport/request.hpp"
#include "transport/transport.hpp"

namespace millrace::test {

class SocketTransport final : public soft::Transport {
  public:
    /// Of `qp`, which is in RESET and has no peer in the fabric. Closes `socket` at its end.
    SocketTransport(soft::QueuePair& qp, int socket) : qp_{qp}, socket_{socket} {
        soft::Node& node = qp.owner->process->node();
        keys_.open(qp.end, &node, nullptr);
        completions_.open(qp.block, soft::CompletionRing::Of::sends,
                          {qp.end.bell_send, qp.end.news_send}, false, qp.counters);
        // As the responder sees it, requests come from an end that lies in this process's memory,
        // and is no queue pair's: all that it is asked for is the way, which is as ours.
        soft::End requester;
        requester.block = soft::BlockView{requester_block_, soft::Geometry{}};
        requester.type = qp.qp_type;
        responder_.connect(&node, nullptr, requester, qp.end, false, &qp.run_counters);
    }
    ~SocketTransport() override { close(socket_); }

    [[nodiscard]] bool takes(const ibv_send_wr& wr) const noexcept override {
        const unsigned opcode = soft::raw_opcode(wr);
        if (!connected()) return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
        return opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD;
    }

    [[nodiscard]] ibv_wc_status post(const ibv_send_wr& wr, std::uint32_t flags,
                                     std::uint32_t slot) noexcept override {
        Sent sent{slot, flags, {}, {}};
        sent.fetches = wr.opcode == IBV_WR_RDMA_READ || soft::is_atomic(wr.opcode);
        sent.sges.assign(wr.sg_list, wr.sg_list + wr.num_sge);
        std::vector<std::byte> payload;
        if (!copy_out(sent, payload)) return IBV_WC_LOC_PROT_ERR;
        Head head{};
        head.kind = connected() ? Kind::request : Kind::datagram;
        head.opcode = wr.opcode;
        head.solicited = (flags & IBV_SEND_SOLICITED) != 0 ? 1 : 0;
        head.immediate = wr.imm_data;
        head.bytes = sent.bytes;
        if (soft::is_atomic(wr.opcode)) {
            head.address = wr.wr.atomic.remote_addr;
            head.key = wr.wr.atomic.rkey;
            head.compare_or_add = wr.wr.atomic.compare_add;
            head.swap = wr.wr.atomic.swap;
        } else if (connected()) {
            head.address = wr.wr.rdma.remote_addr;
            head.key = wr.wr.rdma.rkey;
        } else {
            head.qpn = wr.wr.ud.remote_qpn;
            head.key = wr.wr.ud.remote_qkey;
            head.source = qp_.qp_num;
        }
        if (sent.fetches) payload.clear();
        transmit(head, payload);
        if (connected()) {
            sent_.push_back(std::move(sent));
        } else {
            complete(sent);
        }
        return IBV_WC_SUCCESS;
    }

    [[nodiscard]] ibv_wc_status move() noexcept override {
        receive();
        while (!requests_.empty() && execute(requests_.front())) requests_.pop_front();
        ibv_wc_status failure = IBV_WC_SUCCESS;
        while (!responses_.empty() && !sent_.empty() && failure == IBV_WC_SUCCESS) {
            failure = take(responses_.front());
            if (failure == IBV_WC_SUCCESS) sent_.pop_front();
            responses_.pop_front();
        }
        return failure;
    }

    void abort() noexcept override {
        aborted_ = static_cast<std::uint32_t>(sent_.size());
        sent_.clear();
    }
    [[nodiscard]] std::uint32_t aborted() const noexcept override { return aborted_; }
    void restart() noexcept override { aborted_ = 0; }
    [[nodiscard]] bool idle() const noexcept override { return sent_.empty(); }

  private:
    enum class Kind : std::uint32_t { request, response, datagram };
    struct Head {
        Kind kind;
        std::uint32_t opcode;  ///< of a response: its status
        std::uint32_t solicited;
        std::uint32_t immediate;
        std::uint32_t key;  ///< or Q_Key
        std::uint32_t qpn;
        std::uint32_t source;
        std::uint32_t bytes;  ///< carried, or wanted
        std::uint64_t address;
        std::uint64_t compare_or_add;
        std::uint64_t swap;
    };
    struct Message {
        Head head;
        std::vector<std::byte> payload;
    };
    struct Sent {
        std::uint32_t slot = 0;
        std::uint32_t flags = 0;
        std::vector<ibv_sge> sges;
        std::uint32_t bytes = 0;
        bool fetches = false;
    };

    [[nodiscard]] bool connected() const noexcept { return qp_.qp_type != IBV_QPT_UD; }

    /// Calls `action(address, bytes)` for each piece of the request, in this process's memory.
    template <class Action>
    [[nodiscard]] bool for_each_piece(Sent& sent, Action&& action) noexcept {
        const soft::HazardScope scope{qp_.block.hazard->send, false};
        soft::Pieces pieces;
        std::uint32_t count = 0;
        std::uint64_t total = 0;
        if (!keys_.gather(sent.sges.data(), static_cast<int>(sent.sges.size()),
                          (sent.flags & IBV_SEND_INLINE) != 0,
                          sent.fetches ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U, pieces.data(),
                          count, total)) {
            return false;
        }
        sent.bytes = static_cast<std::uint32_t>(total);
        for (std::uint32_t i = 0; i < count; ++i) action(pieces[i].at.direct, pieces[i].length);
        return true;
    }
    [[nodiscard]] bool copy_out(Sent& sent, std::vector<std::byte>& payload) noexcept {
        return for_each_piece(sent, [&](const std::byte* from, std::uint64_t bytes) {
            payload.insert(payload.end(), from, from + bytes);
        });
    }

    void transmit(const Head& head, const std::vector<std::byte>& payload) noexcept {
        std::vector<std::byte> bytes(sizeof head);
        std::memcpy(bytes.data(), &head, sizeof head);
        bytes.insert(bytes.end(), payload.begin(), payload.end());
        static_cast<void>(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }

    void receive() noexcept {
        std::vector<std::byte> bytes(std::size_t{1} << 16);
        for (;;) {
            const ssize_t length = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
            if (length < static_cast<ssize_t>(sizeof(Head))) return;
            Message message;
            std::memcpy(&message.head, bytes.data(), sizeof message.head);
            message.payload.assign(bytes.begin() + sizeof(Head), bytes.begin() + length);
            auto& queue = message.head.kind == Kind::response ? responses_ : requests_;
            queue.push_back(std::move(message));
        }
    }

    /// False: not yet.
    [[nodiscard]] bool execute(Message& message) noexcept {
        if (message.head.kind == Kind::datagram) {
            deliver(message);
            return true;
        }
        if (qp_.state != IBV_QPS_RTR && qp_.state != IBV_QPS_RTS) return true;
        if (!qp_.theirs.lock().try_lock()) return false;
        const soft::Progress progress = run(message);
        static_cast<void>(qp_.theirs.lock().unlock());
        if (progress != soft::Progress::done && progress != soft::Progress::failed) return false;
        Head response{};
        response.kind = Kind::response;
        response.opcode = static_cast<std::uint32_t>(
            progress == soft::Progress::done ? IBV_WC_SUCCESS : responder_.failure());
        response.bytes = static_cast<std::uint32_t>(message.payload.size());
        transmit(response, message.payload);
        return true;
    }

    /// With the run lock. What it fetches is then the message's payload.
    [[nodiscard]] soft::Progress run(Message& message) noexcept {
        soft::PathLine& way = *requester_view().path;
        way.send_psn.store(qp_.path.receive_psn.load());
        way.mtu.store(qp_.path.mtu.load());
        way.leads_to_port.store(1);
        const Head& head = message.head;
        soft::Request request{};
        request.opcode = static_cast<ibv_wr_opcode>(head.opcode);
        request.flags = IBV_SEND_INLINE;
        if (head.solicited != 0) request.flags |= IBV_SEND_SOLICITED;
        request.immediate = head.immediate;
        request.remote_key = head.key;
        request.remote_address = head.address;
        request.compare_or_add = head.compare_or_add;
        request.swap = head.swap;
        const bool fetches = request.opcode == IBV_WR_RDMA_READ || soft::is_atomic(request.opcode);
        std::vector<std::byte> fetched(fetches ? head.bytes : 0);
        std::vector<std::byte>& bytes = fetches ? fetched : message.payload;
        const ibv_sge piece{reinterpret_cast<std::uint64_t>(bytes.data()),
                            static_cast<std::uint32_t>(bytes.size()), 0};
        request.sges = &piece;
        request.sge_count = 1;
        const soft::HazardScope scope{qp_.block.hazard->run, false};
        const soft::Progress progress = responder_.run(request);
        if (progress == soft::Progress::done) message.payload = std::move(fetched);
        return progress;
    }

    void deliver(Message& message) noexcept {
        soft::Process& process = *qp_.owner->process;
        const auto target =
            process.datagram_targets().find(process.node(), message.head.qpn, nullptr);
        if (target == nullptr) return;
        soft::DatagramMessage datagram;
        datagram.pieces[0] = {soft::Reach{message.payload.data(), 0, 0}, message.payload.size(), 0};
        datagram.count = message.payload.empty() ? 0 : 1;
        datagram.bytes = static_cast<std::uint32_t>(message.payload.size());
        datagram.source = message.head.source;
        datagram.qkey = message.head.key;
        if (message.head.opcode == IBV_WR_SEND_WITH_IMM) {
            datagram.flags = soft::completion_immediate;
            datagram.immediate = message.head.immediate;
        }
        static_cast<void>(target->deliver(datagram));
    }

    /// What the oldest request fails with, by its response.
    [[nodiscard]] ibv_wc_status take(const Message& response) noexcept {
        Sent& sent = sent_.front();
        if (response.head.opcode != IBV_WC_SUCCESS)
            return static_cast<ibv_wc_status>(response.head.opcode);
        std::size_t at = 0;
        if (sent.fetches && !for_each_piece(sent, [&](std::byte* to, std::uint64_t bytes) {
                if (response.payload.size() - at < bytes) return;
                std::memcpy(to, response.payload.data() + at, bytes);
                at += bytes;
            })) {
            return IBV_WC_LOC_PROT_ERR;
        }
        complete(sent);
        return IBV_WC_SUCCESS;
    }
    void complete(const Sent& sent) noexcept {
        if ((sent.flags & IBV_SEND_SIGNALED) == 0) return;
        completions_.write(completions_.position(), sent.bytes, 0, sent.slot);
    }

    [[nodiscard]] soft::BlockView requester_view() noexcept {
        return soft::BlockView{requester_block_, soft::Geometry{}};
    }

    soft::QueuePair& qp_;
    const int socket_;
    soft::KeyCache keys_;
    soft::CompletionRing completions_;
    alignas(soft::cache_line) std::byte requester_block_[soft::Geometry{}.block_size()]{};
    soft::Executor responder_;
    std::deque<Sent> sent_;
    std::deque<Message> requests_;
    std::deque<Message> responses_;
    std::uint32_t aborted_ = 0;
};

/// From here on the requests of `qp`, which is in RESET, travel through the socket.
inline void carry_by_socket(ibv_qp* qp, int socket) {
    auto& own = *static_cast<soft::QueuePair*>(qp);
    const auto held = own.sends.hold();
    held->transport = std::make_unique<SocketTransport>(own, socket);
}

}  // namespace millrace::test
