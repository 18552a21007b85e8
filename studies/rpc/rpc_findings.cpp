#include "rpc_findings.hpp"

#include <cstddef>
#include <string>

namespace millrace::bench {
namespace {

/// What a curve has at one x to what it has at another.
Judge along(const std::string& id, const std::string& label, std::size_t x, std::size_t to,
            Range allowed) {
    return point_to_point({id, label, x}, {id, label, to}, allowed);
}
/// What a curve of one figure has to what that of another one has, at the same x.
Judge across(const std::string& id, const std::string& other_id, const std::string& label,
             std::size_t x, Range allowed) {
    return point_to_point({id, label, x}, {other_id, label, x}, allowed);
}

}  // namespace

std::vector<StudyFinding> findings_of_work() {
    const std::string small = "WriteWrite, 64 B";
    const std::string page = "WriteWrite, 4096 B";
    const std::string large = "WriteWrite, 16384 B";
    return {
        {"5", "3a", "Responses by WRITE outperform those by SEND: of WRITE requests",
         "median ratio of WriteWrite to WriteSend up to 16 KiB at least 1.05",
         ratio_between("3a", "WriteWrite", "WriteSend", {1.05}, 0, 16384)},
        {"5", "3a", "... of SEND requests",
         "median ratio of SendWrite to SendSend up to 16 KiB at least 1.05",
         ratio_between("3a", "SendWrite", "SendSend", {1.05}, 0, 16384)},
        {"5", "3a", "From the worst, SendSend, to the best, WriteWrite, it is some 40 %",
         "median ratio up to 256 B between 1.2 and 2",
         ratio_between("3a", "WriteWrite", "SendSend", {1.2, 2}, 0, 256)},
        {"5", "3a", "With 4 MiB the gap closes", "the same between 0.85 and 1.15",
         ratio_between("3a", "WriteWrite", "SendSend", {0.85, 1.15}, 4'194'304)},
        {"6", "5", "With many requesters WriteSend outperforms SendWrite: 64 B",
         "40 requesters, above 1.05",
         ratio_between("5", "WriteSend, 64 B", "SendWrite, 64 B", {1.05}, 40)},
        {"6", "5", "... and WriteWrite is more than twice SendSend",
         "64 B, 16 requesters and more, at least 1.8",
         ratio_between("5", small, "SendSend, 64 B", {1.8}, 16)},
        {"6", "7", "What a SEND costs the responder is not amortized",
         "SendSend, 40 to 8 requesters at least 0.95", along("7", "SendSend", 40, 8, {0.95})},
        {"7", "8", "With few requesters for each responder SendWrite outperforms WriteSend",
         "4 KiB, 6 responders, above 1.05",
         ratio_between("8", "SendWrite, 4096 B", "WriteSend, 4096 B", {1.05}, 6)},
        {"5", "3b", "Responses of 64 B and of 256 B take about as long",
         "median latency of 256 B to that of 64 B between 0.8 and 1.4",
         along("3b", "WriteWrite", 256, 64, {0.8, 1.4})},
        {"5", "4b", "Cycles for each byte fall with the response, at the responder",
         "16 KiB to 64 B at most 0.1", along("4b", "WriteWrite", 16384, 64, {0, 0.1})},
        {"5", "4a", "... and at the requester", "16 KiB to 64 B at most 0.1",
         along("4a", "WriteWrite", 16384, 64, {0, 0.1})},
        {"6", "5", "Beyond 16 requesters the bandwidth stays: 64 B",
         "40 to 16 requesters between 0.8 and 1.25", along("5", small, 40, 16, {0.8, 1.25})},
        {"6", "5", "... 4 KiB", "40 to 16 requesters between 0.8 and 1.25",
         along("5", page, 40, 16, {0.8, 1.25})},
        {"6", "6", "A dispatcher has the same bandwidth with 40 requesters of 4 KiB",
         "to own connections between 0.9 and 1.1", across("6", "5", page, 40, {0.9, 1.1})},
        {"6", "6", "... and less with fewer, for the hand-over: 16 requesters",
         "to own connections below 0.95", across("6", "5", page, 16, {0, 0.95})},
        {"6", "7", "The responder's cycles for a message fall from 8 requesters to 40",
         "40 to 8 requesters at most 0.9", along("7", "WriteWrite", 40, 8, {0, 0.9})},
        {"7", "8", "Small responses gain by more responders",
         "64 B, 6 to 2 responders at least 1.2", along("8", small, 6, 2, {1.2})},
        {"7", "table 2", "More responders find more mailboxes empty",
         "own connections, 6 to 2 responders at least 1.05",
         along("table 2", "WriteWrite, own", 6, 2, {1.05})},
        {"7", "9a", "90 mailboxes cost nothing, as long as all are in use",
         "90 to 16 requesters at least 0.9", along("9a", "WriteWrite", 90, 16, {0.9})},
        {"7", "9b", "Up to 70 % empty mailboxes the bandwidth is stable",
         "70 % to none at least 0.85", along("9b", page, 70, 0, {0.85})},
        {"7", "9b", "With 90 % it has lost more than half", "90 % to none at most 0.5",
         along("9b", page, 90, 0, {0, 0.5})},
        {"8", "9b", "One byte for each requester, side by side, mends that",
         "dense to flag, 64 B, 90 % and more, above 1.02",
         ratio_between("9b", "WriteWrite, 64 B, dense", small, {1.02}, 90)},
        {"8", "section 8", "Inlining small messages gains: by WRITE",
         "median ratio of as it is to not inlined above 1.02",
         ratio_between("section 8", "WriteWrite, posted", "WriteWrite, not inlined", {1.02})},
        {"8", "section 8", "... selective signaling gains: by WRITE",
         "median ratio of as it is to each signaled above 1.02",
         ratio_between("section 8", "WriteWrite, posted", "WriteWrite, each signaled", {1.02})},
        {"8", "section 8, pages", "Huge pages reduce what translating addresses costs",
         "median ratio of huge to small above 1.02",
         ratio_between("section 8, pages", "huge pages", "small pages", {1.02})},
        {"8", "section 8, thread domains",
         "Without locks, as one thread alone uses a queue pair, posting is faster",
         "median ratio of a thread domain to none above 1.02",
         ratio_between("section 8, thread domains", "thread domain", "none", {1.02})},
        {"7", "10", "To many responders, a dispatcher is slower than own connections: 4 KiB",
         "with 4 responders below 1", across("10", "8", page, 4, {0, 1})},
        {"7", "10", "... and equal for 16 KiB", "with 4 responders between 0.85 and 1.15",
         across("10", "8", large, 4, {0.85, 1.15})},
    };
}

}  // namespace millrace::bench
