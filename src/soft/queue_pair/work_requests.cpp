#include "queue_pair/work_requests.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

namespace millrace::soft {

void WorkRequests::start() noexcept {
    if (!single_threaded_) lock_.lock_often();
    error_ = 0;
    collected_.clear();
    pieces_.clear();
    bytes_.clear();
}

void WorkRequests::abort() noexcept { unlock(); }

int WorkRequests::complete(ibv_qp& qp, std::uint32_t room) noexcept {
    int error = error_;
    if (error == 0 && collected_.size() > room) error = ENOMEM;
    if (error == 0 && !collected_.empty()) {
        // Only now do the vectors stay where they are.
        for (std::size_t i = 0; i < collected_.size(); ++i) {
            ibv_send_wr& request = collected_[i].request;
            request.next = i + 1 < collected_.size() ? &collected_[i + 1].request : nullptr;
            request.sg_list = pieces_.data() + collected_[i].first;
            if ((request.send_flags & IBV_SEND_INLINE) != 0) {
                request.sg_list->addr += reinterpret_cast<std::uint64_t>(bytes_.data());
            }
        }
        ibv_send_wr* bad = nullptr;
        error = qp.context->ops.post_send(&qp, &collected_.front().request, &bad);
    }
    unlock();
    return error;
}

ibv_send_wr* WorkRequests::add(const ibv_qp_ex& qp, ibv_wr_opcode opcode) noexcept {
    try {
        Collected& one = collected_.emplace_back();
        one.request.wr_id = qp.wr_id;
        one.request.opcode = opcode;
        one.request.send_flags = qp.wr_flags & ~unsigned{IBV_SEND_INLINE};
        return &one.request;
    } catch (const std::bad_alloc&) {
        fail(ENOMEM);
        return nullptr;
    }
}

ibv_send_wr* WorkRequests::last() noexcept {
    if (!collected_.empty()) return &collected_.back().request;
    fail(EINVAL);
    return nullptr;
}

void WorkRequests::set_pieces(const ibv_sge* pieces, std::size_t count) noexcept {
    ibv_send_wr* const request = last();
    if (request == nullptr) return;
    if (count > sges_ || collected_.back().has_data) return fail(EINVAL);
    collected_.back().has_data = true;
    collected_.back().first = pieces_.size();
    request->num_sge = static_cast<int>(count);
    try {
        pieces_.insert(pieces_.end(), pieces, pieces + count);
    } catch (const std::bad_alloc&) {
        fail(ENOMEM);
    }
}

void WorkRequests::set_inline(const ibv_data_buf* pieces, std::size_t count) noexcept {
    ibv_send_wr* const request = last();
    if (request == nullptr) return;
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (pieces[i].length > inline_bytes_ - total) return fail(EINVAL);
        total += pieces[i].length;
    }
    if (collected_.back().has_data) return fail(EINVAL);
    collected_.back().has_data = true;
    collected_.back().first = pieces_.size();
    request->send_flags |= IBV_SEND_INLINE;
    request->num_sge = 1;
    const std::size_t first = bytes_.size();
    try {
        pieces_.push_back({first, static_cast<std::uint32_t>(total), 0});  // until `complete`
        bytes_.resize(first + total);
    } catch (const std::bad_alloc&) {
        return fail(ENOMEM);
    }
    std::byte* to = bytes_.data() + first;
    for (std::size_t i = 0; i < count; ++i) {
        if (pieces[i].length > 0) std::memcpy(to, pieces[i].addr, pieces[i].length);
        to += pieces[i].length;
    }
}

}  // namespace millrace::soft
