// Two connections, the MADs between them, and what their programs heard: for tests that decide what
// happens in which order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "connection.hpp"

namespace millrace::cm {

/// One end: what it said that has not been delivered, what its program was told.
struct End {
    explicit End(std::uint32_t comm_id, std::uint64_t guid) : connection{comm_id, guid} {}

    /// Keeps what a call led to; answers its error.
    int keep(const Step& step) {
        if (step.mad) {
            // As it would travel.
            const MadBytes bytes = encode(*step.mad);
            said.push_back(decode(bytes).value());
        }
        if (step.event) heard.push_back(*step.event);
        return step.error;
    }
    [[nodiscard]] std::vector<EventKind> kinds() const {
        std::vector<EventKind> kinds;
        for (const Event& event : heard) kinds.push_back(event.kind);
        return kinds;
    }
    /// The one that this end says; it is taken away.
    Mad take() {
        if (said.empty()) {
            ADD_FAILURE() << "it said nothing";
            return {};
        }
        const Mad mad = said.front();
        said.pop_front();
        return mad;
    }

    Connection connection;
    std::deque<Mad> said;
    std::vector<Event> heard;
};

/// The attributes of what lies in a queue.
inline std::vector<Attribute> attributes(const std::deque<Mad>& mads) {
    std::vector<Attribute> all;
    for (const Mad& mad : mads) all.push_back(attribute_of(mad));
    return all;
}

inline const std::vector<std::uint8_t>& request_data() {
    static const std::vector<std::uint8_t> data{1, 2, 3, 4, 5};
    return data;
}
inline const std::vector<std::uint8_t>& answer_data() {
    static const std::vector<std::uint8_t> data{9, 8, 7};
    return data;
}

/// `active` asks, `passive` answers. Nothing is delivered by itself.
struct Ends {
    static constexpr std::uint64_t active_guid = 0x0200c0fffe000201;
    static constexpr std::uint64_t passive_guid = 0x0200c0fffe000301;

    End active{0xa0000001, active_guid};
    End passive{0xb0000001, passive_guid};
    Time now{std::chrono::seconds{1000}};

    static Destination destination(TransportType transport = TransportType::rc) {
        Destination to;
        to.service_id = service_id(PortSpace::tcp, 7174);
        to.addresses.source_port = 40000;
        to.transport = transport;
        to.path_mtu = 5;
        to.path.local_gid[15] = 1;
        to.path.remote_gid[15] = 2;
        to.path.hop_limit = 64;
        return to;
    }
    static Terms active_terms() {
        Terms terms;
        terms.qpn = 0x111;
        terms.starting_psn = 0xaaaaaa;
        terms.responder_resources = 3;
        terms.initiator_depth = 4;
        terms.retry_count = 6;
        terms.rnr_retry_count = 5;
        terms.private_data = request_data();
        return terms;
    }
    static Terms passive_terms() {
        Terms terms;
        terms.qpn = 0x222;
        terms.starting_psn = 0xbbbbbb;
        terms.responder_resources = 2;
        terms.initiator_depth = 1;
        terms.rnr_retry_count = 7;
        terms.private_data = answer_data();
        return terms;
    }

    int connect(TransportType transport = TransportType::rc) {
        return active.keep(active.connection.connect(destination(transport), active_terms(), now));
    }
    int resolve() {
        return active.keep(active.connection.resolve(service_id(PortSpace::udp, 7174), {}, 0xffff,
                                                     request_data(), now));
    }
    int accept() { return passive.keep(passive.connection.accept(passive_terms(), now)); }
    int confirm() { return active.keep(active.connection.confirm(now)); }
    int disconnect(End& end) { return end.keep(end.connection.disconnect(now)); }
    int close(End& end) { return end.keep(end.connection.close(now)); }
    int hang_up(End& end) { return end.keep(end.connection.hang_up(now)); }
    End& other(const End& end) { return &end == &active ? passive : active; }

    /// The oldest MAD that `from` said arrives.
    void deliver(End& from) { arrive(other(from), from.take()); }
    void arrive(End& at, const Mad& mad) { at.keep(at.connection.receive(mad, now)); }
    /// Everything arrives, until nobody says anything.
    void settle() {
        while (!active.said.empty() || !passive.said.empty()) {
            if (!active.said.empty()) deliver(active);
            if (!passive.said.empty()) deliver(passive);
        }
    }
    void requested() {
        connect();
        settle();
    }
    void responded() {
        requested();
        accept();
        settle();
    }
    void established() {
        responded();
        confirm();
        settle();
    }
    /// The clock goes to the end's deadline, if it has one.
    bool pass_deadline(End& end) {
        const std::optional<Time> due = end.connection.deadline();
        if (!due) return false;
        now = std::max(now, *due);
        end.keep(end.connection.expire(now));
        return true;
    }
};

}  // namespace millrace::cm
