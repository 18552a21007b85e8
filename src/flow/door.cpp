#include "millrace/flow/door.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace::flow::detail {
namespace {

connect::Hub::Options hub_options() { return {.wait = base::WaitPolicy::blocking()}; }

Options with_budget(Options options, std::uint32_t most) {
    std::uint64_t& clients = options.admission.budget.clients;
    clients = std::min<std::uint64_t>(clients, most);
    return options;
}

}  // namespace

Options without_spin(Options options) {
    options.wait.spin = std::chrono::nanoseconds{0};
    return options;
}

Door::Door() : hub_{hub_options()}, period_{base::ticks_in(std::chrono::milliseconds{1})} {}

Door::Door(const connect::Address& address, Options options, std::uint32_t most)
    : hub_{hub_options()},
      listener_{Listener::listen(address, with_budget(std::move(options), most))},
      period_{base::ticks_in(std::chrono::milliseconds{1})} {
    accepting_ = hub_.add(listener_->descriptor(), [this] { somebody_came_ = true; });
}

bool Door::is_due() const noexcept { return must_look_ || base::ticks() - looked_at_ >= period_; }

bool Door::look() {
    must_look_ = false;
    looked_at_ = base::ticks();
    (void)hub_.turn();
    return std::exchange(somebody_came_, false);
}

void Door::rest(const base::Deadline& deadline) {
    (void)hub_.rest(deadline);
    must_look_ = true;
}

void Door::check_thread(const char* attempted) const {
    if (hub_.is_current()) return;
    throw base::Error{base::ErrorCode::invalid_argument, attempted,
                      has_listener() ? listener().address().to_string() : std::string{},
                      "it belongs to another thread", "call adopt() in the thread that uses it"};
}

void Door::stop_accepting() {
    if (!accepting_.has_value()) return;
    hub_.remove(*accepting_);
    accepting_.reset();
}

}  // namespace millrace::flow::detail
