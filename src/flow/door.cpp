#include "millrace/flow/door.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/log.hpp"

namespace millrace::flow::detail {
namespace {

Options with_budget(Options options, std::uint64_t most) {
    std::uint64_t& clients = options.admission.budget.clients;
    clients = std::min(clients, most);
    return options;
}

std::uint32_t noted_forks() noexcept {
    base::count_forks();
    return base::forks();
}

}  // namespace

Options without_spin(Options options) {
    options.wait.spin = std::chrono::nanoseconds{0};
    return options;
}

void note_lost_newcomer(const std::string& peer, const std::string& why) {
    base::log(base::LogLevel::warn, "flow", "{} came and was gone before its setup was over{}{}",
              peer, why.empty() ? "" : ": ", why);
}

// ---- OwnersHub

OwnersHub::OwnersHub()
    : hub_{{.wait = base::WaitPolicy::blocking()}},
      forks_{noted_forks()},
      period_{base::ticks_in(std::chrono::milliseconds{1})} {}

void OwnersHub::watch(int descriptor, std::string name) {
    name_ = std::move(name);
    watched_.push_back(hub_.add(descriptor, [this] { somebody_came_ = true; }));
}

void OwnersHub::stop_watching() {
    for (const connect::Hub::Id id : watched_) hub_.remove(id);
    watched_.clear();
}

void OwnersHub::require_owner(const char* attempted) const {
    if (name_.empty() || (hub_.is_current() && is_of_this_process())) return;
    if (!is_of_this_process()) base::refuse_copy(attempted, name_);
    throw base::Error{
        base::ErrorCode::invalid_argument, attempted, name_, "it belongs to another thread",
        "call adopt() in the thread that uses it from now on, while no other one does"};
}

bool OwnersHub::look(const char* attempted) {
    must_look_ = false;
    looked_at_ = base::ticks();
    if (name_.empty()) return false;
    require_owner(attempted);
    (void)hub_.turn();
    return std::exchange(somebody_came_, false);
}

void OwnersHub::rest(const char* attempted, const base::Deadline& deadline) {
    require_owner(attempted);
    (void)hub_.rest(deadline);
    must_look_ = true;
}

// ---- Door

Door::Door(const char* whose, const connect::Address& address, Options options, std::uint64_t most)
    : Door{whose, Listener::listen(address, with_budget(std::move(options), most))} {}

Door::Door(const char* whose, Listener listener) : listener_{std::move(listener)} {
    watch(listener_->descriptor(),
          fmt::format("{} at {}", whose, listener_->address().to_string()));
}

void Door::stop_accepting() {
    acceptor_.reset();
    stop_watching();
}

}  // namespace millrace::flow::detail
