// A datagram is read from the beginning of the receive's buffer, where the global route header has
// its 40 bytes.
#include "program.hpp"

namespace millrace::planted {

MILLRACE_CHILD(forgotten_header) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    const Domain domain{conformance::made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    Options options;
    options.type = IBV_QPT_UD;
    std::optional<Endpoint> a;
    std::optional<Endpoint> b;
    try {
        a.emplace(device, domain.get(), options);
        b.emplace(device, domain.get(), options);
    } catch (const std::system_error& error) {
        if (!conformance::says_unsupported(error.code().value())) throw;
        say("unsupported");
        return 3;
    }
    a->connect({});
    b->connect({});
    Buffer out{domain.get(), 4096};
    const Buffer in{domain.get(), 4096};
    out.fill(1);
    ibv_ah_attr path = device.loopback();
    const conformance::Address address{
        conformance::made(ibv_create_ah(domain.get(), &path), "ibv_create_ah")};
    constexpr std::size_t length = 100;
    const std::size_t header = wrong ? 0 : 40;
    if (b->receive(1, {in.slice(0, header + length)}) != 0) return 2;
    ibv_sge slice = out.slice(0, length);
    ibv_send_wr wr{};
    wr.sg_list = &slice;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = address.get();
    wr.wr.ud.remote_qpn = b->qp->qp_num;
    wr.wr.ud.remote_qkey = conformance::queue_key;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(a->qp.get(), &wr, &bad) != 0) return 2;
    if (const auto what = trouble(a->sends)) return went_wrong(*what);
    if (const auto what = trouble(b->receives)) return went_wrong("receive: " + *what);
    if (!conformance::same(out, 0, in, header, length)) return went_wrong("other bytes than sent");
    return went_well();
}

}  // namespace millrace::planted
