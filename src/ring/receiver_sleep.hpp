// How a Receiver sleeps for items. Part of Receiver, included by the files that make Receivers.
#pragma once

#include "millrace/ring/receiver.hpp"

#include <cstdint>

namespace millrace::ring {

/// Sleeps for items: news is that the producer has sent more than was consumed.
template <Design D>
    requires(check_design<D>())
class Receiver<D>::FlagSleeper final : public Sleeper {
  public:
    FlagSleeper(Receiver& receiver, WakeUpPage& own, const verbs::MemoryRegion& region)
        : Sleeper{receiver.end_.link(), receiver.end_.window(), own, region},
          receiver_{&receiver} {}

    /// Whoever sleeps owes nothing: the producer may wait for this credit.
    void prepare() override {
        receiver_->return_all();
        Sleeper::prepare();
        receiver_->waiting_ = true;
        // The look behind it must offer credit again that found one in flight: whose completion was
        // reaped just now wakes nobody.
        receiver_->looked_ = 0;
    }
    void woken(Rest from) override {
        Sleeper::woken(from);
        receiver_->looked_ = 0;
    }
    void retract() override {
        receiver_->waiting_ = false;
        receiver_->intake_.awake();
        Sleeper::retract();
    }

  protected:
    /// A torn word counts as news: to look once more is all that news leads to.
    bool is_news(std::uint64_t progress) noexcept override {
        return progress != receiver_->intake_.free(receiver_->front_);
    }

  private:
    Receiver* receiver_;
};

/// Sleeps for completions of the receives that data take.
template <Design D>
    requires(check_design<D>())
class Receiver<D>::ArrivalSleeper final : public CompletionSleeper {
  public:
    explicit ArrivalSleeper(Receiver& receiver)
        : CompletionSleeper{receiver.end_.link(), receiver.end_.window()}, receiver_{&receiver} {}

    void prepare() override {
        receiver_->return_all();
        CompletionSleeper::prepare();
        receiver_->waiting_ = true;
        receiver_->looked_ = 0;  // as above
    }
    void woken(Rest from) override {
        CompletionSleeper::woken(from);
        receiver_->looked_ = 0;
    }
    void retract() override {
        receiver_->waiting_ = false;
        CompletionSleeper::retract();
    }

  protected:
    bool is_late() noexcept override { return receiver_->intake_.is_late(receiver_->front_); }

  private:
    Receiver* receiver_;
};

}  // namespace millrace::ring
