// The receiver takes the n-th datagram for message n. Datagrams are lost, come twice and overtake
// each other: without the mistake each carries its number, is acknowledged, and sent again until it
// is.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {
namespace {

constexpr std::size_t header = 40;
constexpr std::size_t receive_size = 64;
constexpr std::uint64_t receives = 16;

/// One end: sends words, and sees those that come.
struct Post {
    Post(const Device& device, ibv_pd* domain)
        : memory{domain, 4096}, end{device, domain, options()} {
        end.connect({});
        for (std::uint64_t i = 0; i < receives; ++i) post(i);
    }
    static Options options() {
        Options options;
        options.type = IBV_QPT_UD;
        options.max_receive = receives;
        return options;
    }
    void post(std::uint64_t id) {
        static_cast<void>(end.receive(id, {memory.slice(1024 + receive_size * id, receive_size)}));
    }
    bool send(const Post& to, ibv_ah* address, std::uint64_t word) {
        memory.set_word(word);
        ibv_sge slice = memory.slice(0, 8);
        ibv_send_wr wr{};
        wr.sg_list = &slice;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.ud.ah = address;
        wr.wr.ud.remote_qpn = to.end.qp->qp_num;
        wr.wr.ud.remote_qkey = conformance::queue_key;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(end.qp.get(), &wr, &bad) == 0 && !trouble(end.sends);
    }
    /// The next word that has come, within a moment.
    std::optional<std::uint64_t> take(std::chrono::milliseconds patience) {
        ibv_wc wc{};
        base::NapParker naps;
        const auto status =
            base::wait_until([&] { return ibv_poll_cq(end.receives.get(), 1, &wc) == 1; },
                             base::Deadline::after(patience), {}, naps);
        if (status != base::Status::ok || wc.status != IBV_WC_SUCCESS) return std::nullopt;
        const std::uint64_t word = memory.word(1024 + receive_size * wc.wr_id + header);
        post(wc.wr_id);
        return word;
    }
    Buffer memory;
    Endpoint end;
};

/// What went wrong, or nothing.
std::optional<std::string> count_them(Post& a, Post& b, ibv_ah* address, std::uint64_t messages) {
    for (std::uint64_t message = 0; message < messages; ++message) {
        if (!a.send(b, address, message)) return "refused";
        const auto word = b.take(own_patience);
        if (!word) return "stuck";
        if (*word < message) return "a message came twice or late";
        if (*word > message) return "a message is missing";
    }
    return std::nullopt;
}

std::optional<std::string> number_them(Post& a, Post& b, ibv_ah* address, std::uint64_t messages) {
    constexpr std::chrono::milliseconds moment{2};
    std::uint64_t taken = 0;
    for (std::uint64_t message = 0; message < messages; ++message) {
        bool acknowledged = false;
        for (int attempt = 0; !acknowledged; ++attempt) {
            if (attempt == 1000) return "stuck";
            if (!a.send(b, address, message)) return "refused";
            while (const auto word = b.take(moment)) {
                if (*word > taken) return "a message is missing";
                if (*word == taken) ++taken;
                if (!b.send(a, address, *word)) return "refused";  // once more, if it came again
                if (*word == message) break;
            }
            while (const auto word = a.take(moment)) {
                acknowledged = acknowledged || *word == message;
                if (acknowledged) break;
            }
        }
    }
    return taken == messages ? std::nullopt : std::optional<std::string>{"a message is missing"};
}

}  // namespace

MILLRACE_CHILD(counted_datagrams) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    const Domain domain{conformance::made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    std::optional<Post> a;
    std::optional<Post> b;
    try {
        a.emplace(device, domain.get());
        b.emplace(device, domain.get());
    } catch (const std::system_error& error) {
        if (!conformance::says_unsupported(error.code().value())) throw;
        say("unsupported");
        return 3;
    }
    ibv_ah_attr path = device.loopback();
    const conformance::Address address{
        conformance::made(ibv_create_ah(domain.get(), &path), "ibv_create_ah")};
    constexpr std::uint64_t messages = 100;
    const auto what = wrong ? count_them(*a, *b, address.get(), messages)
                            : number_them(*a, *b, address.get(), messages);
    return what ? went_wrong(*what) : went_well();
}

}  // namespace millrace::planted
