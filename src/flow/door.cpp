#include "millrace/flow/door.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/log.hpp"

namespace millrace::flow::detail {
namespace {

connect::Hub::Options hub_options() { return {.wait = base::WaitPolicy::blocking()}; }

Options with_budget(Options options, std::uint64_t most) {
    std::uint64_t& clients = options.admission.budget.clients;
    clients = std::min(clients, most);
    return options;
}

std::uint32_t noted_forks() noexcept {
    base::count_forks();
    return base::forks();
}

std::uint64_t period_of_looks() { return base::ticks_in(std::chrono::milliseconds{1}); }

}  // namespace

Options without_spin(Options options) {
    options.wait.spin = std::chrono::nanoseconds{0};
    return options;
}

void note_lost_newcomer(const std::string& peer, const std::string& why) {
    base::log(base::LogLevel::warn, "flow", "{} came and was gone before its setup was over{}{}",
              peer, why.empty() ? "" : ": ", why);
}

Door::Door() : hub_{hub_options()}, forks_{noted_forks()}, period_{period_of_looks()} {}

Door::Door(const char* whose, const connect::Address& address, Options options, std::uint64_t most)
    : whose_{whose},
      hub_{hub_options()},
      listener_{Listener::listen(address, with_budget(std::move(options), most))},
      forks_{noted_forks()},
      period_{period_of_looks()} {
    accepting_ = hub_.add(listener_->descriptor(), [this] { somebody_came_ = true; });
}

void Door::require_owner(const char* attempted) const {
    if (!listener_.has_value() || (hub_.is_current() && is_of_this_process())) return;
    std::string name = fmt::format("{} at {}", whose_, listener_->address().to_string());
    if (!is_of_this_process()) base::refuse_copy(attempted, std::move(name));
    throw base::Error{
        base::ErrorCode::invalid_argument, attempted, std::move(name),
        "it belongs to another thread",
        "call adopt() in the thread that uses it from now on, while no other one does"};
}

bool Door::look(const char* attempted) {
    must_look_ = false;
    looked_at_ = base::ticks();
    if (!listener_.has_value()) return false;
    require_owner(attempted);
    (void)hub_.turn();
    return std::exchange(somebody_came_, false);
}

void Door::rest(const char* attempted, const base::Deadline& deadline) {
    require_owner(attempted);
    (void)hub_.rest(deadline);
    must_look_ = true;
}

void Door::stop_accepting() {
    acceptor_.reset();
    if (!accepting_.has_value()) return;
    hub_.remove(*accepting_);
    accepting_.reset();
}

}  // namespace millrace::flow::detail
