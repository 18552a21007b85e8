// Calls that are answered later: what is known of them, and what is told of their end.
#include "server_state.hpp"
#include "stream_state.hpp"

namespace millrace::rpc::detail {

using base::Status;

void Calls::give_up(std::uint64_t id) {
    const std::lock_guard guard{mutex_};
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    Pending& pending = *found->second;
    if (!pending.is_unwanted.exchange(true, std::memory_order_release)) {
        pending.procedure->unwanted.fetch_add(1, std::memory_order_relaxed);
    }
}

Status CallCore::fail(const Error& error) {
    if (end_ != End::none) return Status::closed;
    ErrorRoom room;
    const std::span<const std::byte> bytes = write(error, room);
    end_ = End::failed;
    return request_->fail({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

message::Reply CallCore::defer(std::shared_ptr<Pending>& pending) {
    if (end_ != End::none) return {};
    if (client_->calls == nullptr) client_->calls = std::make_shared<Calls>();
    pending = std::make_shared<Pending>();
    pending->procedure = procedure_->deferred;
    pending->client = client_->calls;
    pending->id = request_->id();
    pending->began = began_;
    pending->deadline = deadline_;
    pending->trace = head_->trace;
    pending->client->insert(pending->id, pending.get());
    try {
        message::Reply reply = request_->defer();
        pending->procedure->pending.fetch_add(1, std::memory_order_relaxed);
        end_ = End::deferred;
        return reply;
    } catch (...) {
        pending->client->erase(pending->id);
        throw;
    }
}

std::shared_ptr<StreamState> CallCore::open() {
    const std::uint64_t id = request_->id();
    std::shared_ptr<Pending> pending;
    message::Reply reply = defer(pending);
    try {
        auto stream = std::make_shared<StreamState>(
            pending, id, std::move(reply), procedure_->options.max_parts, procedure_->held);
        // A client that gives two streams one number has ended the first.
        std::shared_ptr<StreamState>& known = client_->streams[head_->stream.value_or(id)];
        if (known != nullptr) known->give_up();
        known = stream;
        return stream;
    } catch (...) {
        detail::settle(std::move(pending), false);
        throw;
    }
}

ReplyCore& ReplyCore::operator=(ReplyCore&& other) noexcept {
    std::swap(pending_, other.pending_);
    std::swap(reply_, other.reply_);
    return *this;
}

ReplyCore::~ReplyCore() { settle(false); }

bool ReplyCore::is_wanted() const noexcept {
    return pending_ != nullptr && !pending_->is_unwanted.load(std::memory_order_acquire);
}

base::Deadline ReplyCore::deadline() const noexcept {
    return pending_ != nullptr ? pending_->deadline : base::Deadline::never();
}

std::optional<Trace> ReplyCore::trace() const noexcept {
    return pending_ != nullptr ? pending_->trace : std::nullopt;
}

// It is settled before the answer is on its way: whoever has the answer finds it counted, and may
// ask for the next one where a limit allows no more.
Status ReplyCore::answer(std::span<const std::byte> payload) {
    if (!reply_.is_due()) return Status::closed;
    settle(true);
    return reply_.answer(payload);
}

Status ReplyCore::fail(const Error& error) {
    if (!reply_.is_due()) return Status::closed;
    settle(false);
    ErrorRoom room;
    const std::span<const std::byte> bytes = write(error, room);
    return reply_.fail({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void ReplyCore::settle(bool answered) noexcept {
    detail::settle(std::exchange(pending_, nullptr), answered);
}

void settle(std::shared_ptr<Pending> pending, bool answered) noexcept {
    if (pending == nullptr) return;
    pending->client->erase(pending->id);
    Deferred& counts = *pending->procedure;
    (answered ? counts.answered : counts.failed).fetch_add(1, std::memory_order_relaxed);
    if (pending->began != 0) counts.record(ticks_since(pending->began));
    counts.pending.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace millrace::rpc::detail
