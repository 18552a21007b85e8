// Large messages, see the header.
#include "lane/rendezvous.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "millrace/base/detail/peer_causality.hpp"

namespace millrace::message {

using base::Status;

// --- memory

namespace {

constexpr std::size_t least_step = 4096;
constexpr std::chrono::seconds unused_memory_stays{1};

/// What is asked for, for a message of `size` bytes: so that the next one of about that size fits.
[[nodiscard]] std::size_t size_of_block(std::size_t size) noexcept {
    const std::size_t step = std::max(least_step, std::bit_floor(size) / 4);
    return (size + step - 1) / step * step;
}

}  // namespace

verbs::RegisteredBuffer MemoryPool::take(std::size_t size) noexcept {
    auto best = kept_.end();
    for (auto one = kept_.begin(); one != kept_.end(); ++one) {
        // A small message leaves the memory of a large one to the next large one.
        const std::size_t bytes = one->memory.size();
        if (bytes < size || bytes > 4 * size_of_block(size)) continue;
        if (best == kept_.end() || bytes < best->memory.size()) best = one;
    }
    if (best != kept_.end()) {
        verbs::RegisteredBuffer memory = std::move(best->memory);
        kept_bytes_ -= memory.size();
        kept_.erase(best);
        return memory;
    }
    try {
        return endpoint_->protection_domain().allocate(size_of_block(size), access_);
    } catch (const std::exception&) {
        return {};
    }
}

void MemoryPool::give_back(verbs::RegisteredBuffer memory) noexcept {
    if (memory.size() == 0) return;
    const auto now = base::Clock::now();
    tidy(now);
    if (memory.size() > most_kept_ - std::min(kept_bytes_, most_kept_)) return;
    const std::size_t bytes = memory.size();
    try {
        kept_.push_back({std::move(memory), now});
        kept_bytes_ += bytes;
    } catch (const std::bad_alloc&) {
        // Then it goes.
    }
}

void MemoryPool::tidy(base::Clock::time_point now) noexcept {
    std::erase_if(kept_, [&](const Kept& one) {
        if (now - one.since < unused_memory_stays) return false;
        kept_bytes_ -= one.memory.size();
        return true;
    });
}

// --- sending

Rendezvous::Rendezvous(Channel::Core& core, const LargeMessages& setting, HeldPart part)
    : core_{&core},
      setting_{setting},
      part_{std::move(part)},
      staging_{core.link().shared_endpoint(), verbs::Access::remote_read, setting.max_bytes},
      landing_{core.link().shared_endpoint(), verbs::Access::local_write, setting.max_bytes},
      counter_{core.carrier.word(core.peer_page + offsetof(ControlPage, read))} {}

bool Rendezvous::claim(std::size_t size, std::span<std::byte>& place) {
    if (!reclaim() || announced_.size() == most_announced ||
        (!announced_.empty() &&
         size > setting_.max_bytes - std::min(staged_bytes_, setting_.max_bytes))) {
        return false;
    }
    if (claimed_.size() < size) {
        staging_.give_back(std::exchange(claimed_, {}));
        claimed_ = staging_.take(size);
        if (claimed_.size() == 0) return false;
    }
    place = {claimed_.data(), size};
    return true;
}

Rendezvous::Announced Rendezvous::announce(const SessionHead& head, std::size_t size) {
    SessionHeader header;
    (void)parse(head, header);
    header.kind = header.kind == SessionKind::request ? SessionKind::request_by_read
                                                      : SessionKind::answer_by_read;
    const verbs::RemoteAddress from = claimed_.remote();
    const Announced announced{.head = pack(header),
                              .where = pack(Announcement{.address = from.address,
                                                         .rkey = from.rkey,
                                                         .is_in_order = setting_.keeps_order,
                                                         .length = size})};
    announced_.push_back({std::exchange(claimed_, {}), size});
    staged_bytes_ += size;
    ++announcements_;
    return announced;
}

void Rendezvous::take_back() noexcept {
    staged_bytes_ -= announced_.back().bytes;
    staging_.give_back(std::move(announced_.back().memory));
    announced_.pop_back();
    --announcements_;
}

bool Rendezvous::reclaim() noexcept {
    if (announced_.empty()) return true;
    const std::uint64_t before = taken_.value();
    const ring::News news =
        taken_.take(core_->page().read.load(), announcements_ * ring::PositionWord::unit);
    if (news == ring::News::impossible) {
        core_->fail("the peer says that it has READ more than was announced");
        return false;
    }
    for (std::uint64_t at = before; at != taken_.value(); at += ring::PositionWord::unit) {
        Staged& staged = announced_.front();
        staged_bytes_ -= staged.bytes;
        taken_bytes_ += staged.bytes;
        staging_.give_back(std::move(staged.memory));
        announced_.pop_front();
    }
    return true;
}

// --- receiving

bool Rendezvous::fetch(const SessionHead& head, const Announcement& from) {
    if (!has_room()) return false;
    coming_.push_back({.head = head, .from = from, .state = Coming::State::wanted});
    return true;
}

bool Rendezvous::decline() {
    if (!has_room()) return false;
    coming_.emplace_back();
    return true;
}

namespace {
[[nodiscard]] std::uint64_t id_of(const SessionHead& head) noexcept {
    return head[0] & largest_request_id;
}
}  // namespace

bool Rendezvous::give_up(std::uint64_t id) noexcept {
    for (Coming& one : coming_) {
        if (one.state != Coming::State::wanted || id_of(one.head) != id) continue;
        one.state = Coming::State::given_up;
        return true;
    }
    return false;
}

bool Rendezvous::is_fetching(std::uint64_t id) const noexcept {
    return std::any_of(coming_.begin(), coming_.end(), [&](const Coming& one) {
        return one.state != Coming::State::declined && id_of(one.head) == id;
    });
}

bool Rendezvous::wants_some() const noexcept {
    return std::any_of(coming_.begin(), coming_.end(),
                       [](const Coming& one) { return one.state != Coming::State::declined; });
}

bool Rendezvous::is_done(const Coming& one) const noexcept {
    if (one.state == Coming::State::wanted && one.asked != one.from.length) return false;
    return core_->window().done(one.ticket);
}

bool Rendezvous::holds_ring() const noexcept {
    return std::any_of(coming_.begin(), coming_.end(),
                       [](const Coming& one) { return one.from.is_in_order; });
}

bool Rendezvous::is_due() noexcept {
    return done_ != 0 || owes_count_ ||
           (!coming_.empty() && (under_way_ == 0 || core_->read_has_come()));
}

Status Rendezvous::pump() noexcept {
    if (core_->window().reap() != Status::ok) return Status::peer_lost;
    std::size_t complete = 0;
    while (complete != under_way_ && core_->window().done(reads_[complete])) ++complete;
    std::move(reads_.begin() + static_cast<std::ptrdiff_t>(complete),
              reads_.begin() + static_cast<std::ptrdiff_t>(under_way_), reads_.begin());
    under_way_ -= complete;
    complete_ += complete;
    count();
    Status status = ask();
    if (status == Status::ok) {
        // What needed no READ is done with at once.
        count();
        if (owes_count_) status = tell();
    }
    core_->awaited_read = under_way_ == 0 ? 0 : reads_[0];
    return status;
}

void Rendezvous::count() noexcept {
    for (; done_ != coming_.size() && is_done(coming_[done_]); ++done_) {
        ++counted_;
        owes_count_ = true;
    }
}

bool Rendezvous::land(Coming& one) noexcept {
    const std::uint64_t length = one.from.length;
    if (landing_bytes_ != 0 &&
        length > setting_.max_bytes - std::min(landing_bytes_, setting_.max_bytes)) {
        return false;
    }
    if (part_.set(landing_bytes_ + length)) one.memory = landing_.take(payload_at + length);
    if (one.memory.size() == 0) {
        (void)part_.set(landing_bytes_);
        one.state = Coming::State::no_memory;
        return true;
    }
    landing_bytes_ += length;
    return true;
}

void Rendezvous::release(Coming& one) noexcept {
    if (one.memory.size() == 0) return;
    landing_bytes_ -= one.from.length;
    (void)part_.set(landing_bytes_);
    landing_.give_back(std::move(one.memory));
}

Status Rendezvous::ask() noexcept {
    const std::uint32_t others = std::min(slots_for_others, core_->window().slots() / 2);
    for (std::size_t i = done_; i != coming_.size(); ++i) {
        Coming& one = coming_[i];
        while (one.state == Coming::State::wanted && one.asked != one.from.length) {
            if (under_way_ == most_reads || core_->window().free() <= others) {
                return Status::ok;
            }
            if (one.memory.size() == 0) {
                if (!land(one)) return Status::ok;
                continue;
            }
            const std::uint64_t bytes =
                std::min<std::uint64_t>(one.from.length - one.asked, read_bytes);
            const ibv_sge slice = one.memory.slice(payload_at + one.asked, bytes);
            const Status status = core_->window().post(
                verbs::Read{.into = {&slice, 1},
                            .from = {one.from.address + one.asked, one.from.rkey}},
                end::Signal::now);
            if (status != Status::ok) return status == Status::full ? Status::ok : status;
            one.asked += bytes;
            one.ticket = reads_[under_way_++] = core_->window().posted();
        }
    }
    return Status::ok;
}

Status Rendezvous::tell() noexcept {
    const std::uint64_t word = ring::PositionWord::pack(counted_ * ring::PositionWord::unit);
    if (counter_ != nullptr) {
        base::telling_peers();
        std::atomic_ref<std::uint64_t>{*counter_}.store(word, std::memory_order_release);
        owes_count_ = false;
        return Status::ok;
    }
    const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
    const Status status =
        core_->window().post(verbs::Write{.from = {&slice, 1},
                                          .to = core_->peer_page + offsetof(ControlPage, read),
                                          .flags = verbs::SendFlags::inlined});
    if (status == Status::ok) owes_count_ = false;
    return status == Status::full ? Status::ok : status;
}

Rendezvous::Arrival Rendezvous::arrival() noexcept {
    while (done_ != 0 && coming_.front().state == Coming::State::declined) pop();
    if (done_ == 0) return Arrival::none;
    Coming& one = coming_.front();
    switch (one.state) {
        case Coming::State::given_up: return Arrival::given_up;
        case Coming::State::no_memory: return Arrival::no_memory;
        default: break;
    }
    if (one.memory.size() != 0) {
        std::memcpy(one.memory.data() + payload_at - session_head_bytes, &one.head,
                    session_head_bytes);
    }
    return Arrival::whole;
}

std::span<const std::byte> Rendezvous::message() const noexcept {
    const Coming& one = coming_.front();
    // Of no bytes, or not whole.
    if (one.state != Coming::State::wanted || one.memory.size() == 0) {
        return std::as_bytes(std::span{one.head});
    }
    return {one.memory.data() + payload_at - session_head_bytes,
            session_head_bytes + one.from.length};
}

void Rendezvous::pop() noexcept {
    release(coming_.front());
    coming_.pop_front();
    --done_;
}

}  // namespace millrace::message
