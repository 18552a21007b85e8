// What the process behind a RemoteEndpoint does with its commands.
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "soft/held_pages.hpp"
#include "soft/remote_endpoint.hpp"
#include "support/withheld_copies.hpp"

namespace millrace::test {
namespace {

std::string describe(const std::optional<ibv_wc>& wc) {
    if (!wc) return "none";
    return std::to_string(wc->wr_id) + ' ' + std::to_string(wc->status) + ' ' +
           std::to_string(wc->byte_len);
}

}  // namespace

void serve_endpoint(Endpoint& end,
                    const std::function<std::optional<std::string>(const EndpointCommand&)>& own) {
    say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(end.address()) + ' ' +
        std::to_string(end.mr->rkey));
    std::optional<HeldPages> held;
    while (const auto line = hear()) {
        std::istringstream words{*line};
        EndpointCommand command;
        auto& [verb, a, b, c, d, e] = command;
        words >> verb >> a >> b >> c >> d >> e;
        if (const auto answer = own ? own(command) : std::nullopt) {
            say(*answer);
        } else if (verb == "connect") {
            say(std::to_string(end.connect(static_cast<std::uint32_t>(a))));
        } else if (verb == "init") {
            say(std::to_string(end.to_init()));
        } else if (verb == "rtr") {
            say(std::to_string(end.to_rtr(static_cast<std::uint32_t>(a))));
        } else if (verb == "receive") {  // id offset length
            say(std::to_string(end.receive(a, b, c)));
        } else if (verb == "send") {  // id offset length
            say(std::to_string(end.send(a, b, c)));
        } else if (verb == "write") {  // id offset length address key
            say(std::to_string(end.write(a, b, c, d, static_cast<std::uint32_t>(e))));
        } else if (verb == "read") {  // id offset length address key
            say(std::to_string(end.post(IBV_WR_RDMA_READ, a, {end.sge(b, c)}, IBV_SEND_SIGNALED, d,
                                        static_cast<std::uint32_t>(e))));
        } else if (verb == "add") {  // times address key: fetch-and-adds of 1, one after the other
            std::uint64_t good = 0;
            for (std::uint64_t i = 0; i < a; ++i) {
                if (end.fetch_add(i, 0, b, static_cast<std::uint32_t>(c), 1) != 0) break;
                const auto wc = end.complete();
                if (!wc || wc->status != IBV_WC_SUCCESS) break;
                ++good;
            }
            say(std::to_string(good));
        } else if (verb == "add_forever") {  // address key
            say("adding");
            for (;;) {
                static_cast<void>(end.fetch_add(1, 0, a, static_cast<std::uint32_t>(b), 1));
                static_cast<void>(end.complete());
            }
        } else if (verb == "fill") {  // offset length byte
            std::memset(end.memory + a, static_cast<int>(c), b);
            say("ok");
        } else if (verb == "check") {  // offset length byte
            say(std::all_of(
                    end.memory + a, end.memory + a + b,
                    [byte = static_cast<std::byte>(c)](std::byte value) { return value == byte; })
                    ? "same"
                    : "different");
        } else if (verb == "complete") {
            say(describe(end.complete()));
        } else if (verb == "poll") {
            say(describe(end.poll_once()));
        } else if (verb == "notify") {  // solicited
            say(std::to_string(ibv_req_notify_cq(end.cq, static_cast<int>(a))));
        } else if (verb == "event") {  // waits for one; the command's answer comes first
            say("waiting");
            ibv_cq* cq = nullptr;
            void* context = nullptr;
            const int result = soft::get_cq_event(end.channel, &cq, &context);
            if (result == 0) soft::ack_cq_events(cq, 1);
            say(result == 0 && cq == end.cq && context == &end ? "event" : "failed");
        } else if (verb == "flood") {  // writes of length to address with key, for ever
            say("flooding");
            for (;;) {
                static_cast<void>(end.write(1, 0, a, b, static_cast<std::uint32_t>(c)));
                while (end.poll_once()) {
                }
            }
        } else if (verb == "write_until_error") {  // length address key
            say("writing");
            std::optional<ibv_wc> wc;
            do {
                if (end.write(1, 0, a, b, static_cast<std::uint32_t>(c)) != 0) break;
                wc = end.complete();
            } while (wc && wc->status == IBV_WC_SUCCESS);
            say(wc ? std::to_string(wc->status) : "none");
        } else if (verb == "unmap") {  // leaves nothing where the buffer was
            say(mmap(end.memory, end.options.bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == end.memory
                    ? "0"
                    : "failed");
        } else if (verb == "reset") {
            say(std::to_string(end.to_state(IBV_QPS_RESET)));
        } else if (verb == "hold") {  // offset length: whoever touches these pages stands still
            if (HeldPages::possible()) held.emplace(end.memory + a, b);
            say(held ? "held" : "impossible");
        } else if (verb == "leave") {  // its only thread ends, and not the process
            pthread_exit(nullptr);
        } else if (verb == "undumpable") {
            say(std::to_string(prctl(PR_SET_DUMPABLE, 0)));
        } else if (verb == "dereg") {
            const int error = soft::dereg_mr(end.mr);
            if (error == 0) end.mr = nullptr;
            say(std::to_string(error));
        } else {
            say("what?");
        }
    }
}

namespace {

MILLRACE_CHILD(soft_endpoint) {
    const auto has = [&](const char* flag) {
        return std::find(arguments.begin(), arguments.end(), flag) != arguments.end();
    };
    if (has("time_namespace")) {  // ten days ahead, and not by whole ticks
        std::ofstream offsets;
        if (unshare(CLONE_NEWTIME) != 0) return 77;
        offsets.open("/proc/self/timens_offsets");
        offsets << "monotonic 864000 1000\nboottime 864000 5000000\n";
        if (!offsets.flush()) return 77;
    }
    const bool is_first = has("pid_namespace");  // the process that goes on is the first in it
    if (is_first && unshare(CLONE_NEWPID) != 0) return 77;
    if (is_first || has("time_namespace")) {
        const pid_t first = fork();
        if (first < 0) return 1;
        if (first > 0) {
            int status = 0;
            while (waitpid(first, &status, 0) < 0 && errno == EINTR) {
            }
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
    }
    if (has("unprivileged")) {
        if (setgid(65534) != 0 || setuid(65534) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) return 77;
    }
    if (has("withheld") && !withhold_copies()) return 77;
    if (has("no_pidfd") && !withhold_pidfd()) return 77;
    EndpointOptions options;
    options.events = has("events");
    options.shared_memory = !has("private");
    if (has("uc")) options.type = IBV_QPT_UC;
    options.bytes = 1 << 20;
    if (has("atomic")) {
        options.access |= IBV_ACCESS_REMOTE_ATOMIC;
        options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    Endpoint end{options};
    serve_endpoint(end);
    return 0;
}

}  // namespace
}  // namespace millrace::test
