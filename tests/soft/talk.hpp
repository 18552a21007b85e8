// One connection of a participant that does everything with its peer at the same time: WRITEs,
// SENDs, READs and atomics, chosen by a seed, each checked as far as its completion allows. Used by
// the participants of three_participants_test.cpp and crowd_of_processes_test.cpp.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "soft/endpoint.hpp"

namespace millrace::test {

class Talk {
  public:
    /// What a peer has to know of this end.
    struct Facts {
        std::uint32_t qpn = 0;
        std::uint64_t address = 0;
        std::uint32_t rkey = 0;
    };

    static constexpr std::uint32_t depth = 16;

    static EndpointOptions options(bool events) {
        EndpointOptions chosen;
        chosen.shared_memory = false;  // or what share_memory() makes
        chosen.events = events;
        chosen.send_wr = depth;
        chosen.receive_wr = depth;
        chosen.reads = 4;
        chosen.bytes = bytes;
        chosen.access |= IBV_ACCESS_REMOTE_ATOMIC;
        chosen.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
        return chosen;
    }

    Talk(bool shared, bool events, std::uint64_t seed) : random_{seed}, end_{options(events)} {
        if (shared) share_memory();
        for (std::size_t i = 0; i < pattern_bytes / 8; ++i) end_.word(pattern + i * 8) = mark(i);
        if (events) static_cast<void>(ibv_req_notify_cq(end_.cq, 0));
    }
    ~Talk() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    Talk(const Talk&) = delete;
    Talk& operator=(const Talk&) = delete;

    [[nodiscard]] Facts facts() const { return {end_.qp->qp_num, end_.address(), end_.mr->rkey}; }
    [[nodiscard]] int connect(const Facts& peer) {
        peer_ = peer;
        const int error = end_.connect(peer.qpn);
        connected_ = error == 0;
        return error;
    }

    /// One turn: receives posted anew, a few requests if there is room, and what has completed.
    void step() {
        if (!connected_) return;
        if (!end_.options.events || event_came()) poll_all();
        if (state_of(end_.qp) == IBV_QPS_ERR) return;  // what is posted now is flushed at once
        while (receives_out_ < depth && receive()) {
        }
        if (!active_) return;
        for (std::uint64_t n = random_() % 4; n > 0 && sends_out_ < depth; --n) post_one();
    }

    void work(bool active) { active_ = active; }
    [[nodiscard]] bool idle() const { return sends_out_ == 0; }
    /// In ERROR, and told of everything that was under way.
    [[nodiscard]] bool lost() const {
        return state_of(end_.qp) == IBV_QPS_ERR && sends_out_ + receives_out_ == 0;
    }
    [[nodiscard]] std::uint64_t sent() const { return sent_; }
    [[nodiscard]] std::uint64_t received() const { return received_; }
    [[nodiscard]] std::uint64_t added() const { return added_; }
    /// What the peer has added to our counter.
    [[nodiscard]] std::uint64_t counter() const { return end_.word(words); }
    /// The peer's WRITEs all carry the beginning of its pattern.
    [[nodiscard]] bool written_well() const {
        for (std::size_t i = 0; i < written_bytes; ++i) {
            // WRITEs of the peer may be landing.
            const std::byte byte =
                std::atomic_ref{end_.memory[written + i]}.load(std::memory_order_relaxed);
            if (byte != std::byte{0} && byte != end_.memory[pattern + i]) return false;
        }
        return true;
    }
    /// The first thing that was not as it has to be; empty if there was none.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }
    [[nodiscard]] std::string state() const {
        return "state " + std::to_string(state_of(end_.qp)) + ", " + std::to_string(sends_out_) +
               " sends and " + std::to_string(receives_out_) + " receives under way";
    }
    [[nodiscard]] int event_descriptor() const {
        return end_.channel == nullptr ? -1 : end_.channel->fd;
    }
    /// Gives the region back while the queue pair still exists. What ibv_dereg_mr answers.
    [[nodiscard]] int deregister() {
        const int error = soft::dereg_mr(end_.mr);
        end_.mr = nullptr;
        return error;
    }

  private:
    enum Kind : std::uint64_t { write = 1, send, read, add, swap, receive_of };

    // Where things lie in the buffer.
    static constexpr std::size_t pattern = 0;  // what peers READ, and what is written to them
    static constexpr std::size_t pattern_bytes = 64 << 10;
    static constexpr std::size_t written = pattern + pattern_bytes;  // the peer's WRITEs
    static constexpr std::size_t written_bytes = 64 << 10;
    static constexpr std::size_t words = written + written_bytes;  // counter, swapped word
    static constexpr std::size_t results = words + 4096;           // of atomics, by request
    static constexpr std::size_t read_slot = 4096;
    static constexpr std::size_t reads = results + 4096;
    static constexpr std::size_t message = 512;
    static constexpr std::size_t sends = reads + depth * read_slot;
    static constexpr std::size_t receives = sends + depth * message;
    static constexpr std::size_t bytes = receives + depth * message;

    static std::uint64_t mark(std::size_t i) { return 0x9e3779b97f4a7c15 * (i + 1); }
    static std::uint64_t id(Kind kind, std::uint64_t number) {
        return static_cast<std::uint64_t>(kind) << 48 | number;
    }

    /// In place of the private memory: a file that peers map, whose descriptor is known here.
    void share_memory() {
        soft::dereg_mr(std::exchange(end_.mr, nullptr));
        descriptor_ = memfd_create("test-talk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 ||
            fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK) != 0 ||
            mmap(end_.memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_,
                 0) == MAP_FAILED) {
            throw std::runtime_error("cannot share memory");
        }
        end_.mr = soft::reg_mr(end_.pd, end_.memory, bytes, end_.address(), end_.options.access);
        if (end_.mr == nullptr) throw std::runtime_error("cannot register shared memory");
    }

    void say_wrong(const std::string& what) {
        if (wrong_.empty()) wrong_ = what;
    }

    bool event_came() {
        pollfd waited{end_.channel->fd, POLLIN, 0};
        if (::poll(&waited, 1, 0) != 1) return false;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (soft::get_cq_event(end_.channel, &cq, &context) != 0) return false;
        soft::ack_cq_events(cq, 1);
        // What is there before it is armed again is taken by the poll that follows.
        static_cast<void>(ibv_req_notify_cq(end_.cq, 0));
        return true;
    }

    bool receive() {
        const std::uint64_t number = receives_posted_;
        if (end_.receive(id(receive_of, number), receives + number % depth * message, message) !=
            0) {
            return false;
        }
        ++receives_posted_;
        ++receives_out_;
        return true;
    }

    void post_one() {
        const std::uint64_t number = posted_;
        const std::size_t slot = number % depth;
        int error = 0;
        switch (random_() % 6) {
            case 0: {  // small ones mostly, as everywhere
                error = end_.write(id(write, number), pattern, 8 * (1 + random_() % 8),
                                   peer_.address + written, peer_.rkey);
                break;
            }
            case 1:
                error = end_.write(id(write, number), pattern, random_() % written_bytes,
                                   peer_.address + written, peer_.rkey);
                break;
            case 2: {
                const std::size_t at = sends + slot * message;
                end_.word(at) = sent_;
                error = end_.send(id(send, number), at, 8 + random_() % (message - 8));
                if (error == 0) ++sent_;
                break;
            }
            case 3: {
                const std::uint64_t first = random_() % ((pattern_bytes - read_slot) / 8);
                const std::uint64_t count = 1 + random_() % (read_slot / 8);
                read_first_[slot] = first;
                read_count_[slot] = count;
                error =
                    end_.post(IBV_WR_RDMA_READ, id(read, number),
                              {end_.sge(reads + slot * read_slot, count * 8)}, IBV_SEND_SIGNALED,
                              peer_.address + pattern + first * 8, peer_.rkey);
                break;
            }
            case 4:
                error = end_.fetch_add(id(add, number), results + slot * 8, peer_.address + words,
                                       peer_.rkey, 1);
                if (error == 0) ++added_;
                break;
            default:
                error = end_.compare_swap(id(swap, number), results + slot * 8,
                                          peer_.address + words + 8, peer_.rkey, swapped_,
                                          swapped_ + 1);
                if (error == 0) ++swapped_;
                break;
        }
        if (error != 0) return;
        ++posted_;
        ++sends_out_;
    }

    void poll_all() {
        ibv_wc done[8];
        int count = 0;
        while ((count = ibv_poll_cq(end_.cq, 8, done)) > 0) {
            for (int i = 0; i < count; ++i) take(done[i]);
        }
        if (count < 0) say_wrong("the completion queue broke");
    }

    void take(const ibv_wc& wc) {
        const auto kind = static_cast<Kind>(wc.wr_id >> 48);
        const std::uint64_t number = wc.wr_id & 0xffffffffffff;
        (kind == receive_of ? receives_out_ : sends_out_) -= 1;
        if (kind != receive_of && number != completed_++) say_wrong("requests out of order");
        if (wc.status != IBV_WC_SUCCESS) {
            if (wc.status != IBV_WC_WR_FLUSH_ERR && wc.status != IBV_WC_RETRY_EXC_ERR) {
                say_wrong("status " + std::to_string(wc.status) + " of kind " +
                          std::to_string(kind));
            }
            if (kind != receive_of) failed_ = true;
            return;
        }
        if (failed_ && kind != receive_of) say_wrong("a success after a failure");
        const std::size_t slot = number % depth;
        switch (kind) {
            case receive_of:
                if (end_.word(receives + slot * message) != received_) {
                    say_wrong("message " + std::to_string(end_.word(receives + slot * message)) +
                              " instead of " + std::to_string(received_));
                }
                ++received_;
                break;
            case read:
                for (std::uint64_t i = 0; i < read_count_[slot]; ++i) {
                    if (end_.word(reads + slot * read_slot + i * 8) == mark(read_first_[slot] + i))
                        continue;
                    say_wrong("a READ brought something else");
                    break;
                }
                break;
            case add:
                if (end_.word(results + slot * 8) != adds_seen_++) say_wrong("an add was lost");
                break;
            case swap:
                if (end_.word(results + slot * 8) != swaps_seen_++) say_wrong("a swap was lost");
                break;
            case write:
            case send: break;
        }
    }

    std::mt19937_64 random_;
    Endpoint end_;
    int descriptor_ = -1;  ///< of shared memory
    Facts peer_;
    bool connected_ = false;
    bool active_ = false;
    bool failed_ = false;
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t receives_posted_ = 0;
    std::uint64_t sends_out_ = 0;
    std::uint64_t receives_out_ = 0;
    std::uint64_t sent_ = 0;
    std::uint64_t received_ = 0;
    std::uint64_t added_ = 0;
    std::uint64_t adds_seen_ = 0;
    std::uint64_t swapped_ = 0;
    std::uint64_t swaps_seen_ = 0;
    std::uint64_t read_first_[depth] = {};
    std::uint64_t read_count_[depth] = {};
    std::string wrong_;
};

/// The time that a process has spent looking for something: a process that does not run does not
/// look, so of a gap between two looks only the first milliseconds count.
class TimeOfLooking {
  public:
    [[nodiscard]] std::chrono::nanoseconds look() {
        const auto now = std::chrono::steady_clock::now();
        spent_ += std::min<std::chrono::nanoseconds>(now - last_, std::chrono::milliseconds{10});
        last_ = now;
        return spent_;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
    std::chrono::nanoseconds spent_{0};
};

}  // namespace millrace::test
