// What a thread of its own serves or runs until it is stopped: a server, a group, a dispatcher.
#pragma once

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "millrace/base/status.hpp"

namespace millrace::test {

/// Held behind `served`, whose adopt() and stop() it calls.
template <class Served>
class ServingThread {
  public:
    /// `serve(served)` returns `closed` once it was stopped.
    template <class Serve>
    ServingThread(Served& served, Serve serve)
        : served_{&served}, thread_{[&served, serve = std::move(serve)] {
              served.adopt();
              EXPECT_EQ(serve(served), base::Status::closed);
          }} {}
    ServingThread(const ServingThread&) = delete;
    ServingThread& operator=(const ServingThread&) = delete;
    ~ServingThread() { stop(); }
    /// From here on `served` is the calling thread's.
    void stop() {
        if (!thread_.joinable()) return;
        served_->stop();
        thread_.join();
        served_->adopt();
    }

  private:
    Served* served_;
    std::thread thread_;
};

}  // namespace millrace::test
