// The backstop of mode `shaped`: one thread that moves what is in flight when neither end of a
// connection calls verbs. Started with the first queue pair of its link, asleep while nothing is in
// flight. Called by CableQueue. docs/soft/links.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::soft {

class CableMember;

class CableEngine {
  public:
    CableEngine() = default;
    ~CableEngine();
    CableEngine(const CableEngine&) = delete;
    CableEngine& operator=(const CableEngine&) = delete;

    /// From here to `remove` the engine looks after the member. Throws std::bad_alloc,
    /// std::system_error (no thread to be had).
    void add(CableMember& member);
    /// Waits until it does not: not with a lock of the member's queue pair.
    void remove(CableMember& member) noexcept;

    /// A member's `next_due` has become `due`, which may be earlier than before. Costs a fence
    /// and a load; a system call only when the engine sleeps beyond it.
    void expect(std::int64_t due) noexcept;

  private:
    struct Round {
        std::int64_t next;      ///< when the next thing is due
        bool served = false;    ///< something was due that nobody had done
        bool needed = false;    ///< it was an arrival, and nobody else looked for it
        bool attended = false;  ///< or somebody does look for it
        bool busy = false;      ///< somebody has the lock of what is overdue
    };
    void run() noexcept;
    /// `since`: in ticks; who polled after it is at hand.
    [[nodiscard]] Round look(std::int64_t now, std::int64_t patience, std::int64_t busy_pause,
                             std::uint64_t since) noexcept;
    [[nodiscard]] std::int64_t earliest() noexcept;
    /// Until `until`, or `expect` wakes. False: woken.
    [[nodiscard]] bool sleep(std::uint32_t seen, std::int64_t until) noexcept;
    void wake() noexcept;

    std::mutex mutex_;  ///< the list; never taken where requests are posted or polled
    std::vector<CableMember*> members_;
    std::atomic<std::uint32_t> signal_{0};
    /// What is due earlier than this has to wake the engine; 0 while it is awake.
    std::atomic<std::int64_t> sleeps_past_{0};
    std::atomic<bool> stop_{false};
    std::unique_ptr<std::thread> thread_;
    int process_ = 0;
};

}  // namespace millrace::soft
