// What the planted programs share. Each file here but planted_test.cpp is one small program that
// uses verbs with one classic mistake: `wrong` makes it, `right` is the same program without it.
// A program ends with 0 when all went as its author thought, and with 1 when something went wrong,
// saying in a line what it saw: the test judges whether that names the mistake.
#pragma once

#include <string>
#include <vector>

#include "support/child_process.hpp"
#include "support/loopback.hpp"

namespace millrace::planted {

using conformance::at;
using conformance::Buffer;
using conformance::Device;
using conformance::Domain;
using conformance::Endpoint;
using conformance::Loopback;
using conformance::Options;
using millrace::test::say;

/// How long a program waits before it says that it is stuck: long where that would be a failure of
/// the test, as short as a loaded machine allows where it is what the mistake does.
inline std::chrono::milliseconds own_patience{15'000};

/// True when the program is to make its mistake. To be asked first.
[[nodiscard]] inline bool makes_mistake(const std::vector<std::string>& arguments) {
    const bool wrong = !arguments.empty() && arguments.front() == "wrong";
    if (wrong) own_patience = std::chrono::milliseconds{5'000};
    return wrong;
}

/// The next completion; nullopt if the program is stuck.
[[nodiscard]] inline std::optional<ibv_wc> wait_for(const conformance::Queue& queue) {
    ibv_wc completion{};
    base::NapParker naps;
    const auto status =
        base::wait_until([&] { return ibv_poll_cq(queue.get(), 1, &completion) == 1; },
                         base::Deadline::after(own_patience), {}, naps);
    if (status != base::Status::ok) return std::nullopt;
    return completion;
}

/// The program's end: what it says and its exit status.
inline int went_wrong(const std::string& what) {
    say(what);
    return 1;
}
inline int went_well() {
    say("ok");
    return 0;
}

/// Waits for a completion that should be a success; otherwise says what came in its place.
[[nodiscard]] inline std::optional<std::string> trouble(const conformance::Queue& queue) {
    const auto completion = wait_for(queue);
    if (!completion) return "stuck";
    if (completion->status == IBV_WC_SUCCESS) return std::nullopt;
    return ibv_wc_status_str(completion->status);
}

}  // namespace millrace::planted
