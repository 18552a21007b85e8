#include "many_keys.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace millrace::kv::detail {

using base::Status;

namespace {

/// Some answers lie in a ring together, and the client reads one while the next ones come.
std::size_t answer_bytes(const message::ClientOptions& client) noexcept {
    constexpr std::size_t heads = 64;  // of the session, and of the message
    const std::size_t share = client.ring_bytes / 4;
    return std::min(
        {share - std::min(share, heads), client.max_answer_bytes, std::size_t{most_mget_bytes}});
}

}  // namespace

ManyKeys::ManyKeys(const message::ClientOptions& client) noexcept
    : answer_bytes_{answer_bytes(client)} {}

void ManyKeys::begin(std::span<const std::span<const std::byte>> keys, TakeOne take) {
    keys_ = keys;
    take_ = take;
    wanted_.clear();
    requests_.clear();
    next_ = unanswered_ = mgets_ = 0;
}

void ManyKeys::add(std::size_t index) {
    const std::size_t size = keys_[index].size();
    if (size == 0 || size > longest_key) {
        hand_out(index, {.code = Code::key_error});
    } else {
        wanted_.push_back({index, unknown});
    }
}

/// Of the next request.
std::uint32_t ManyKeys::count_for_next() const noexcept {
    if (!knows_mget_) return 1;
    std::uint32_t count = 0;
    std::size_t request = mget_request_head_bytes;
    std::size_t answer = answer_head_bytes;
    while (count < most_keys && next_ + count < wanted_.size()) {
        const Wanted& wanted = wanted_[next_ + count];
        request += mget_key_head_bytes + keys_[wanted.index].size();
        answer += mget_item_head_bytes + expected_bytes(wanted);
        if (request > most_request_bytes || answer > answer_bytes_) break;
        ++count;
    }
    return count == 0 ? 1 : count;
}

void ManyKeys::write_mget(std::uint32_t count) {
    request_.clear();
    const auto put = [this](const void* from, std::size_t bytes) {
        const auto* const first = static_cast<const std::byte*>(from);
        request_.insert(request_.end(), first, first + bytes);
    };
    const auto bytes = static_cast<std::uint32_t>(answer_bytes_ - answer_head_bytes);
    put(&bytes, sizeof bytes);
    for (std::uint32_t i = 0; i != count; ++i) {
        const std::span<const std::byte> key = keys_[wanted_[next_ + i].index];
        const auto length = static_cast<std::uint32_t>(key.size());
        put(&length, sizeof length);
        put(key.data(), key.size());
    }
}

Status ManyKeys::submit(Client& client, const base::Deadline* deadline) {
    const std::uint32_t count = count_for_next();
    const bool is_mget = count != 1;
    if (is_mget && mgets_ == most_mgets) return Status::full;
    RequestParts parts;
    if (is_mget) {
        write_mget(count);
        parts.value = request_;
    } else {
        parts.key = keys_[wanted_[next_].index];
    }
    requests_.push_back({next_, count, is_mget});
    std::uint64_t id = 0;
    const Command command = is_mget ? Command::mget : Command::get;
    const Status status = deadline != nullptr ? client.submit(command, parts, id, *deadline)
                                              : client.submit(command, parts, id);
    if (status != Status::ok) {
        requests_.pop_back();
        return status;
    }
    if (requests_.size() == 1) first_ = id;
    next_ += count;
    ++unanswered_;
    mgets_ += is_mget ? 1 : 0;
    return status;
}

void ManyKeys::learn(std::size_t value_bytes) noexcept {
    // The last eight or so count.
    value_bytes_ = (7 * value_bytes_ + value_bytes + 7) / 8;
}

void ManyKeys::take(const Answer& answer) {
    if (requests_.empty() || answer.id < first_ || answer.id - first_ >= requests_.size()) return;
    Request& request = requests_[static_cast<std::size_t>(answer.id - first_)];
    const std::uint32_t count = std::exchange(request.count, 0);
    if (count == 0) return;
    --unanswered_;
    if (request.is_mget) {
        --mgets_;
        take_several(request.begin, count, answer);
    } else {
        if (answer.result.ok()) learn(answer.value.size());
        hand_out(wanted_[request.begin].index, answer.result, answer.value);
    }
}

void ManyKeys::take_several(std::size_t begin, std::uint32_t count, const Answer& answer) {
    if (answer.result.code == Code::unknown_error) {
        knows_mget_ = false;
        for (std::uint32_t i = 0; i != count; ++i) {
            wanted_.push_back({wanted_[begin + i].index, unknown});
        }
        return;
    }
    std::span<const std::byte> items = answer.value;
    for (std::uint32_t i = 0; i != count; ++i) {
        const auto [index, told_bytes] = wanted_[begin + i];
        if (!answer.result.ok()) {
            hand_out(index, answer.result);
            continue;
        }
        const std::optional<MgetItem> item = next_of_mget(items);
        if (!item) {  // no server sends such an answer
            hand_out(index, {.code = Code::unanswered, .outcome = message::Outcome::failed});
            continue;
        }
        if (item->head.code == Code::ok) learn(item->bytes);
        if (item->is_left_out) {
            // One that grows again and again goes by itself.
            wanted_.push_back({index, told_bytes == unknown ? item->bytes : answer_bytes_});
        } else {
            hand_out(index, {.code = item->head.code, .version = item->head.version}, item->value);
        }
    }
}

void ManyKeys::give_up(const Result& result) {
    for (Request& request : requests_) {
        const std::uint32_t count = std::exchange(request.count, 0);
        for (std::uint32_t i = 0; i != count; ++i) {
            hand_out(wanted_[request.begin + i].index, result);
        }
    }
    unanswered_ = mgets_ = 0;
    while (has_more()) hand_out(wanted_[next_++].index, result);
}

void ManyKeys::take_back(Client& client) noexcept {
    // Also the one whose reader has thrown: its answer is there still.
    for (std::size_t i = 0; client.outstanding() != 0 && i != requests_.size(); ++i) {
        try {
            (void)client.cancel(first_ + i);
        } catch (const std::bad_alloc&) {
            // Nobody gets its answer; only the server is not told.
        }
    }
}

}  // namespace millrace::kv::detail
