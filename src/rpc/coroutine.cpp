// Calls and parts of streams that coroutines await, and the client that they belong to.
#include "millrace/rpc/coroutine.hpp"

#include <memory>
#include <new>
#include <utility>

#include "async_core.hpp"

namespace millrace::rpc {

using base::Status;

namespace detail {

SuspendedCall& SuspendedCall::of(Record& record) noexcept {
    return **std::launder(reinterpret_cast<SuspendedCall**>(record.storage.data()));
}

const Record::Type SuspendedCall::type{
    .take = [](Record& record, const message::Answer& answer) { of(record).take(answer); },
    .end = [](Record& record, Code code) noexcept { of(record).end(code); },
    .finish =
        [](Record& record) {
            SuspendedCall& call = of(record);
            record.type = nullptr;
            if (call.core_->has_left()) {  // together with one whose task destroyed the client
                call.state_ = State::over;
                call.core_ = nullptr;
                return;
            }
            if (call.core_->puts_off(call, call.code())) return;
            call.state_ = State::over;
            call.go_on();
        },
    // The client has gone, or the call is taken back.
    .drop =
        [](Record& record) noexcept {
            SuspendedCall& call = of(record);
            record.type = nullptr;
            call.state_ = State::over;
            call.core_ = nullptr;
        },
};

SuspendedCall::~SuspendedCall() {
    if (core_ != nullptr) core_->cancel(*this);
}

void SuspendedCall::put(Record& record) noexcept {
    new (record.storage.data()) SuspendedCall* {this};
    record.type = &type;
    state_ = State::submitted;
}

bool SuspendedCall::begin() { return core_->begin(*this); }

SuspendedPart::~SuspendedPart() {
    if (core_ != nullptr) core_->forget(*this);
}

bool SuspendedPart::begin() {
    if (look()) return false;
    if (!core_->has_left()) core_->wait(*this);
    return true;
}

bool SuspendedPart::look() {
    status_ = reader_->take(part_);
    return status_ != Status::empty;
}

void SuspendedPart::resume() {
    core_->forget(*this);
    go_on();
}

void SuspendedPart::came() {
    if (look()) {
        resume();
    } else {
        reader_->tell(this);
    }
}

}  // namespace detail

AsyncClient::AsyncClient(base::Executor& executor, Client client)
    : core_{std::make_shared<detail::AsyncCore>(executor, std::move(client))} {}
AsyncClient::AsyncClient(AsyncClient&&) noexcept = default;
AsyncClient& AsyncClient::operator=(AsyncClient&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
}
AsyncClient::~AsyncClient() {
    if (core_ != nullptr) core_->leave();
}

Status AsyncClient::poll() { return core_->poll(); }
Status AsyncClient::reconnect(const base::Deadline& deadline) { return core_->reconnect(deadline); }
Status AsyncClient::close(const base::Deadline& deadline) { return core_->close(deadline); }
Client& AsyncClient::client() noexcept { return core_->client(); }
detail::ClientCore& AsyncClient::core_of_client() noexcept { return core_->core(); }

}  // namespace millrace::rpc
