#include "run.hpp"

#include "rendezvous.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"
#include "workload/cpu_time.hpp"

namespace millrace::tools::demo {
namespace {

using base::Clock;
using base::Error;
using base::ErrorCode;

/// What one end tells the parent, in memory shared by all three.
struct EndReport {
    std::int64_t mark_ns = 0;  ///< producer: before the first send; consumer: after the last check
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::uint64_t digest = 0;
    double cpu_seconds = 0;
    Effort effort;
    double latency_median_us = 0;
    double latency_p99_us = 0;
    std::atomic<bool> finished{false};
    char error[512] = {};
};

struct Shared {
    alignas(64) std::atomic<std::uint64_t> items{0};
    std::atomic<std::uint64_t> bytes{0};
    alignas(64) EndReport producer;
    alignas(64) EndReport consumer;
};

/// Anonymous memory that survives fork as one and the same.
class SharedPage {
  public:
    SharedPage() {
        void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) base::throw_errno(errno, "map memory", "the demo's results");
        shared_ = new (memory) Shared;
    }
    SharedPage(const SharedPage&) = delete;
    SharedPage& operator=(const SharedPage&) = delete;
    ~SharedPage() { ::munmap(shared_, sizeof(Shared)); }
    Shared& operator*() noexcept { return *shared_; }
    Shared* operator->() noexcept { return shared_; }

  private:
    Shared* shared_;
};

std::uint64_t digest_step(std::uint64_t digest, const RecordHeader& header) {
    return (digest ^ header.hash) * 0x9e3779b97f4a7c15u + header.sequence + header.length;
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

void produce(const Transport& transport, const RecordSet& set, const RunOptions& options,
             const TransportOptions& transport_options, Shared& shared) {
    EndReport& report = shared.producer;
    const auto sender = transport.connect(transport_options);
    std::uint64_t sequence = 0;
    const Effort effort_before = sender->effort();
    const double cpu_before = workload::cpu_time().all();
    report.mark_ns = now_ns();
    for (const Record& record : set.records) {
        const RecordHeader header{sequence++, record.hash, 0, record.length, record.file};
        sender->send(header, set.bytes_of(record));
        report.digest = digest_step(report.digest, header);
        report.bytes += record.length;
    }
    report.items = sequence;
    sender->flush();
    report.cpu_seconds = workload::cpu_time().all() - cpu_before;
    const Effort effort = sender->effort();
    report.effort = {effort.work_requests - effort_before.work_requests,
                     effort.system_calls - effort_before.system_calls};
    // Latency: single 64-byte items into an empty queue, from when the consumer has caught up.
    base::NapParker parker;
    const auto caught_up = [&] {
        return shared.consumer.finished.load() ||
               shared.items.load(std::memory_order_relaxed) >= sequence;
    };
    (void)base::wait_until(caught_up, base::Deadline::after(std::chrono::seconds{30}),
                           base::WaitPolicy::blocking(), parker);
    std::array<std::byte, 64 - sizeof(RecordHeader)> small{};
    auto next = Clock::now();
    for (std::uint32_t i = 0; i < options.latency_items; ++i) {
        std::memcpy(small.data(), &i, sizeof i);
        RecordHeader header{sequence++, hash_of(small), 0, small.size(), 0};
        next += std::chrono::microseconds{options.latency_gap_us};
        while (Clock::now() < next) base::pause();  // bounded by the gap
        header.sent_at = now_ns();
        sender->send(header, small);
    }
    sender->finish();
}

void consume(const Transport& transport, const RecordSet& set, const RunOptions& options,
             Receiver& receiver, Shared& shared) {
    EndReport& report = shared.consumer;
    const std::uint64_t expected = set.records.size();
    std::vector<std::int64_t> latencies;
    latencies.reserve(options.latency_items);
    std::uint64_t sequence = 0;
    double cpu_before = 0;
    Effort effort_before;
    const auto check = [&](const RecordHeader& header, std::span<const std::byte> content) {
        if (header.sent_at != 0) latencies.push_back(now_ns() - header.sent_at);
        const auto fail = [&](std::string_view what) {
            throw Error{ErrorCode::protocol, "check a record", transport.title,
                        fmt::format("record {}: {}", sequence, what),
                        "this is a bug of the transport: please report it"};
        };
        if (header.sequence != sequence) fail(fmt::format("arrived as {}", header.sequence));
        if (header.length != content.size()) fail("its length is wrong");
        if (header.hash != hash_of(content)) fail("its content is not what was sent");
        if (sequence == 0) {
            cpu_before = workload::cpu_time().all();
            effort_before = receiver.effort();
        }
        ++sequence;
        if (sequence <= expected) {
            report.digest = digest_step(report.digest, header);
            report.bytes += header.length;
            report.items = sequence;
            if ((sequence & 1023) == 0 || sequence == expected) {
                shared.items.store(sequence, std::memory_order_relaxed);
                shared.bytes.store(report.bytes, std::memory_order_relaxed);
            }
            if (sequence == expected) {
                report.mark_ns = now_ns();
                report.cpu_seconds = workload::cpu_time().all() - cpu_before;
                const Effort effort = receiver.effort();
                report.effort = {effort.work_requests - effort_before.work_requests,
                                 effort.system_calls - effort_before.system_calls};
            }
        }
    };
    while (receiver.receive(check)) {
    }
    if (!latencies.empty()) {
        std::sort(latencies.begin(), latencies.end());
        const auto at = [&](double share) {
            const auto index =
                static_cast<std::size_t>(share * static_cast<double>(latencies.size() - 1));
            return static_cast<double>(latencies[index]) / 1e3;
        };
        report.latency_median_us = at(0.5);
        report.latency_p99_us = at(0.99);
    }
}

/// Runs `body` in a child that ends with its parent. Errors become text in `report`.
template <class Body>
pid_t fork_end(EndReport& report, int core, Body&& body) {
    std::fflush(nullptr);
    base::flush_log();
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) base::throw_errno(errno, "fork", "one end of the demo");
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    int status = 0;
    try {
        if (core >= 0) base::pin_this_thread(core);
        body();
    } catch (const std::exception& error) {
        std::snprintf(report.error, sizeof report.error, "%s", error.what());
        status = 1;
    }
    report.finished.store(true);
    base::flush_log();
    ::_exit(status);
}

/// The two children; whatever happens, none is left behind.
struct Children {
    pid_t consumer = -1;
    pid_t producer = -1;
    ~Children() {
        for (const pid_t child : {consumer, producer}) {
            if (child > 0) {
                ::kill(child, SIGKILL);
                ::waitpid(child, nullptr, 0);
            }
        }
    }
    /// Reaps `child` if it ended; sets it to -1 then and returns its status.
    static int reap(pid_t& child) {
        int status = 0;
        if (child > 0 && ::waitpid(child, &status, WNOHANG) == child) {
            child = -1;
            return status;
        }
        return 0;
    }
};

}  // namespace

RunResult run_once(const Transport& transport, const RecordSet& records, const RunOptions& options,
                   const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    SharedPage shared;
    TransportOptions transport_options;
    transport_options.rendezvous = options.rendezvous_folder + "/" + transport.key;
    transport_options.max_record = std::max<std::uint32_t>(options.record_size, 64);
    transport_options.ring_bytes = options.ring_bytes;
    transport_options.deadline = base::Deadline::after(
        std::chrono::nanoseconds{static_cast<std::int64_t>(options.limit_seconds * 1e9)});

    if (options.hosts != nullptr) {
        transport_options.has_hosts = true;
        transport_options.host = options.hosts->address(Host::of_consumer);
        forget_port(transport_options);
    }

    Children children;
    children.consumer = fork_end(shared->consumer, options.consumer_core, [&] {
        if (options.hosts != nullptr) options.hosts->enter(Host::of_consumer);
        const auto receiver = transport.listen(transport_options);
        consume(transport, records, options, *receiver, *shared);
    });
    children.producer = fork_end(shared->producer, options.producer_core, [&] {
        if (options.hosts != nullptr) options.hosts->enter(Host::of_producer);
        produce(transport, records, options, transport_options, *shared);
    });

    bool failed = false;
    const auto give_up = base::Deadline::after(
        std::chrono::nanoseconds{static_cast<std::int64_t>((options.limit_seconds + 5) * 1e9)});
    base::Deadline grace = base::Deadline::never();
    while (children.consumer > 0 || children.producer > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds{failed ? 10 : 50});
        const int consumer_status = Children::reap(children.consumer);
        const int producer_status = Children::reap(children.producer);
        if (!failed && (consumer_status != 0 || producer_status != 0)) {
            failed = true;  // the other end has two seconds to notice by itself
            grace = base::Deadline::after(std::chrono::seconds{3});
        }
        if (give_up.expired() || grace.expired()) break;
        if (progress) {
            progress(shared->items.load(std::memory_order_relaxed),
                     shared->bytes.load(std::memory_order_relaxed));
        }
    }
    const EndReport& producer = shared->producer;
    const EndReport& consumer = shared->consumer;
    if (failed || children.consumer > 0 || children.producer > 0) {
        std::string cause;
        if (producer.error[0] != 0) cause += fmt::format("producer: {}", producer.error);
        if (consumer.error[0] != 0) {
            cause += fmt::format("{}consumer: {}", cause.empty() ? "" : "; ", consumer.error);
        }
        if (cause.empty()) cause = failed ? "one end was killed" : "it did not end in time";
        throw Error{ErrorCode::peer_lost, "move the records", transport.title, cause,
                    "run again with MILLRACE_LOG=debug to see more"};
    }
    if (producer.items != consumer.items || producer.bytes != consumer.bytes ||
        producer.digest != consumer.digest) {
        throw Error{
            ErrorCode::protocol, "compare totals", transport.title,
            fmt::format("sent {} records, {} bytes; received {} records, {} bytes; digests {}",
                        producer.items, producer.bytes, consumer.items, consumer.bytes,
                        producer.digest == consumer.digest ? "equal" : "differ"),
            "this is a bug of the transport: please report it"};
    }
    RunResult result;
    const auto items = static_cast<double>(consumer.items);
    result.seconds = static_cast<double>(consumer.mark_ns - producer.mark_ns) * 1e-9;
    result.items = consumer.items;
    result.bytes = consumer.bytes;
    result.cpu_seconds = producer.cpu_seconds + consumer.cpu_seconds;
    result.work_requests_per_item =
        static_cast<double>(producer.effort.work_requests + consumer.effort.work_requests) / items;
    result.system_calls_per_item =
        static_cast<double>(producer.effort.system_calls + consumer.effort.system_calls) / items;
    result.latency_median_us = consumer.latency_median_us;
    result.latency_p99_us = consumer.latency_p99_us;
    return result;
}

}  // namespace millrace::tools::demo
