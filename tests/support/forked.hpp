// What a child that is made by fork, and no more, finds of its parent's objects: it goes on in the
// middle of a test, with copies of everything, and says what it did not expect.
//
//     EXPECT_EQ(in_forked_child([&](Complaints& complaints) {
//         complaints.unless(producer.try_enqueue(item) == Status::peer_lost, "it enqueues");
//     }), "");
//
// ChildProcess (child_process.hpp) is for processes that begin anew.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

namespace millrace::test {

class Complaints {
  public:
    void unless(bool expected, std::string_view otherwise) {
        if (expected) return;
        if (!text_.empty()) text_ += "; ";
        text_ += otherwise;
    }
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

  private:
    std::string text_;
};

/// Runs `body(complaints)` in a child, which then ends without destroying anything else, and gives
/// what it complained of: nothing, if all was as expected. A child that hangs is ended by SIGALRM,
/// and that is told, too.
template <class Body>
[[nodiscard]] std::string in_forked_child(Body&& body, unsigned longest_seconds = 60) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t child = fork();
    if (child < 0) return "no child";
    if (child == 0) {
        close(ends[0]);
        alarm(longest_seconds);
        Complaints complaints;
        try {
            body(complaints);
        } catch (const std::exception& error) {
            complaints.unless(false, error.what());
        }
        const std::string& text = complaints.text();
        const bool was_told =
            write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
        _exit(was_told ? 0 : 1);
    }
    close(ends[1]);
    std::string text;
    char part[512];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) {
        text.append(part, static_cast<std::size_t>(n));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
        text += " (ended by signal " + std::to_string(WTERMSIG(status)) + ")";
    } else if (WEXITSTATUS(status) != 0) {
        text += " (exited with " + std::to_string(WEXITSTATUS(status)) + ")";
    }
    return text;
}

}  // namespace millrace::test
