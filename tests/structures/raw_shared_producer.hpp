// A producer of a shared ring that does what it is told, also what an honest one never does: take
// places and leave them empty, write anywhere, lie.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "crowd.hpp"
#include "millrace/base/detail/name_hash.hpp"
#include "millrace/connect/facts.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/flow/shared_ring.hpp"
#include "millrace/ring/terms.hpp"
#include "shared_facts.hpp"

namespace millrace::flow::test {

template <class T>
class RawSharedProducer {
  public:
    explicit RawSharedProducer(const connect::Address& address, std::uint32_t label = 0)
        : link_{connect::connect(address, options(), soon())},
          window_{link_},
          page_{link_.allocate(sizeof(detail::SharedProducerPage),
                               verbs::Access::remote_write | verbs::Access::remote_read)} {
        new (page_.data()) detail::SharedProducerPage{};
        shape_.slot_bytes = ring::slot_bytes_of(sizeof(T), alignof(T));
        shape_.alignment = alignof(T);
        const detail::ItemFacts item = detail::item_facts<T>();
        const detail::SharedFacts mine{.role = 0,
                                       .size = item.size,
                                       .alignment = item.alignment,
                                       .name = base::name_hash(item.name),
                                       .page = page_.remote().address,
                                       .page_rkey = page_.remote().rkey,
                                       .label = label};
        facts = connect::facts_in<detail::SharedFacts>(
            link_.exchange(connect::bytes_of(mine), soon()), "test", link_.peer_name());
        shape_.slots = facts.slots;
    }

    [[nodiscard]] connect::Link& link() { return link_; }
    [[nodiscard]] const detail::SharedShape& shape() const { return shape_; }
    [[nodiscard]] verbs::RemoteAddress ring() const { return {facts.ring, facts.ring_rkey}; }

    /// False: the request failed.
    bool write(verbs::RemoteAddress to, const void* from, std::size_t bytes) {
        for (std::size_t at = 0; at < bytes; at += 32) {
            const std::size_t part = std::min<std::size_t>(bytes - at, 32);
            const ibv_sge slice{reinterpret_cast<std::uint64_t>(from) + at,
                                static_cast<std::uint32_t>(part), 0};
            if (!post(verbs::Write{
                    .from = {&slice, 1}, .to = to + at, .flags = verbs::SendFlags::inlined})) {
                return false;
            }
        }
        return true;
    }
    bool write_word(verbs::RemoteAddress to, std::uint64_t word) {
        return write(to, &word, sizeof word);
    }
    bool say_attempt(std::uint64_t word) {
        return write_word(
            {facts.page + offsetof(detail::SharedMemberPage, attempt), facts.page_rkey}, word);
    }
    bool swap_tail(std::uint64_t expected, std::uint64_t desired, std::uint64_t& found) {
        const ibv_sge answer = page_.slice(offsetof(detail::SharedProducerPage, answer), 8);
        if (!post(verbs::CompareAndSwap{.into = {&answer, 1},
                                        .at = ring() + detail::SharedShape::tail_at,
                                        .expected = expected,
                                        .desired = desired})) {
            return false;
        }
        std::memcpy(&found, page_.data() + offsetof(detail::SharedProducerPage, answer), 8);
        return true;
    }
    /// The first of `count` places that are its own then.
    std::uint64_t claim(std::uint64_t count) {
        std::uint64_t tail = detail::shared_word(0, facts.first);
        for (;;) {
            const std::uint64_t position = tail & detail::shared_position_mask;
            std::uint64_t found = 0;
            if (!say_attempt(detail::shared_word(count, position)) ||
                !swap_tail(tail, detail::shared_word(facts.owner, position + count), found)) {
                ADD_FAILURE() << "the ring cannot be reached";
                return 0;
            }
            if (found == tail) return position;
            tail = found;
        }
    }
    bool fill(std::uint64_t position, const T& item) {
        const verbs::RemoteAddress at = ring() + shape_.slot_at(position % shape_.slots);
        return write(at, &item, sizeof item) &&
               write_word(at + (shape_.slot_bytes - ring::mark_bytes),
                          detail::shared_mark(facts.owner, facts.secret, position));
    }

    detail::SharedFacts facts;

  private:
    static connect::LinkOptions options() {
        SharedOptions options;
        options.endpoint = connect::Endpoint::shared();
        return detail::shared_link_options(options);
    }
    template <class Request>
    bool post(const Request& request) {
        if (window_.post(request, end::Signal::now) != Status::ok) return false;
        const std::uint64_t ticket = window_.posted();
        const Deadline deadline = soon();
        while (!window_.done(ticket)) {
            if (window_.reap() != Status::ok || deadline.expired()) return false;
            (void)link_.peer();
        }
        return true;
    }

    connect::Link link_;
    end::SendWindow window_;
    verbs::RegisteredBuffer page_;
    detail::SharedShape shape_;
};

}  // namespace millrace::flow::test
