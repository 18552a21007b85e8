"""Queue pair states and errors through pyverbs: an unmodified Python program on a verbs device.

Usage: states.py DEVICE. Ends with status 0 when every step did what the InfiniBand specification
says. It knows nothing of the soft device; programs_test.cpp runs it on that.
"""
import errno
import sys
import time

from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
steps = 0


def check(condition, what):
    global steps
    steps += 1
    if not condition:
        raise AssertionError(what)


def refused(call, *arguments, expected=(errno.EINVAL,)):
    try:
        call(*arguments)
    except PyverbsRDMAError as error:
        check(error.error_code in expected, f'{call}: errno {error.error_code}')
    else:
        raise AssertionError(f'{call} was not refused')


class End:
    """A queue pair with its completion queue and a buffer."""

    def __init__(self, context, access=ALL, extended=False):
        self.pd = PD(context)
        self.mr = MR(self.pd, 4096, access)
        self.channel = CompChannel(context)
        self.cq = CQ(context, 64, None, self.channel)
        capabilities = QPCap(16, 16, 2, 2, 64)
        if extended:
            init = QPInitAttrEx(
                qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capabilities, pd=self.pd,
                comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_SEND)
            self.qp = QPEx(context, init)
        else:
            init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capabilities)
            self.qp = QP(self.pd, init)

    def attributes(self, peer, context):
        wanted = QPAttr(port_num=1)
        wanted.dest_qp_num = peer.qp.qp_num
        wanted.path_mtu = e.IBV_MTU_1024
        wanted.qp_access_flags = (e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
        wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
        wanted.min_rnr_timer = 1
        wanted.timeout, wanted.retry_cnt, wanted.rnr_retry = 10, 1, 1
        wanted.ah_attr = AHAttr(dlid=context.query_port(1).lid, port_num=1)
        return wanted

    def connect(self, peer, context):
        self.qp.to_rts(self.attributes(peer, context))

    def state(self):
        attributes, _ = self.qp.query(e.IBV_QP_STATE)
        return attributes.qp_state

    def modify(self, state):
        attributes = QPAttr(port_num=1)
        attributes.qp_state = state
        self.qp.modify(attributes, e.IBV_QP_STATE)

    def receive(self, length=256):
        self.qp.post_recv(RecvWR(wr_id=7, num_sge=1,
                                 sg=[SGE(self.mr.buf, length, self.mr.lkey)]))

    def post(self, opcode, length=16, key=None, address=None, lkey=None, identity=1):
        wr = SendWR(wr_id=identity, opcode=opcode, num_sge=1,
                    sg=[SGE(self.mr.buf, length, self.mr.lkey if lkey is None else lkey)],
                    send_flags=e.IBV_SEND_SIGNALED)
        if key is not None:
            wr.set_wr_rdma(key, address)
        self.qp.post_send(wr)

    def complete(self, seconds=20):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            count, completions = self.cq.poll(1)
            if count:
                return completions[0]
        raise AssertionError('no completion')


def pair(context, **options):
    left, right = End(context, **options), End(context)
    left.connect(right, context)
    right.connect(left, context)
    return left, right


def states(context):
    end = End(context)
    check(end.state() == e.IBV_QPS_RESET, 'a new queue pair is in RESET')
    refused(end.receive)
    refused(end.modify, e.IBV_QPS_RTR)
    refused(end.modify, e.IBV_QPS_RTS)
    attributes = end.attributes(end, context)
    end.qp.to_init(attributes)
    check(end.state() == e.IBV_QPS_INIT, 'to INIT')
    end.receive()
    refused(end.post, e.IBV_WR_SEND)
    refused(end.modify, e.IBV_QPS_RTS)
    end.modify(e.IBV_QPS_RESET)
    check(end.state() == e.IBV_QPS_RESET, 'back to RESET')
    end.qp.to_rtr(attributes)
    check(end.state() == e.IBV_QPS_RTR, 'to RTR')
    refused(end.post, e.IBV_WR_SEND)
    end.modify(e.IBV_QPS_RESET)
    end.qp.to_rts(attributes)
    check(end.state() == e.IBV_QPS_RTS, 'to RTS')
    end.modify(e.IBV_QPS_SQD)
    check(end.state() == e.IBV_QPS_SQD, 'to SQD')
    end.modify(e.IBV_QPS_RTS)
    end.receive()
    end.modify(e.IBV_QPS_ERR)
    check(end.state() == e.IBV_QPS_ERR, 'to ERROR')
    check(end.complete().status == e.IBV_WC_WR_FLUSH_ERR, 'a receive is flushed')
    end.post(e.IBV_WR_SEND)
    check(end.complete().status == e.IBV_WC_WR_FLUSH_ERR, 'a send in ERROR is flushed')


def transfers(context):
    left, right = pair(context)
    left.mr.write('sent bytes here.', 16)
    right.receive()
    left.post(e.IBV_WR_SEND)
    received = right.complete()
    check((received.status, received.byte_len, received.wr_id) == (e.IBV_WC_SUCCESS, 16, 7),
          'a SEND is received')
    check(right.mr.read(16, 0) == b'sent bytes here.', 'and its bytes')
    check(left.complete().status == e.IBV_WC_SUCCESS, 'a SEND completes')
    left.post(e.IBV_WR_RDMA_WRITE, key=right.mr.rkey, address=right.mr.buf + 512)
    check(left.complete().opcode == e.IBV_WC_RDMA_WRITE, 'a WRITE completes')
    check(right.mr.read(16, 512) == b'sent bytes here.', 'and has arrived')
    right.mr.write('bytes to be read', 16)
    left.post(e.IBV_WR_RDMA_READ, key=right.mr.rkey, address=right.mr.buf)
    check(left.complete().opcode == e.IBV_WC_RDMA_READ, 'a READ completes')
    check(left.mr.read(16, 0) == b'bytes to be read', 'and has brought the bytes')
    right.cq.req_notify()
    right.receive()
    left.post(e.IBV_WR_SEND)
    right.channel.get_cq_event(right.cq)
    right.cq.ack_events(1)
    check(right.complete().status == e.IBV_WC_SUCCESS, 'an event tells of a completion')


def errors(context):
    cases = [
        ('a wrong remote key', e.IBV_WR_RDMA_WRITE, {'key': 0xdead00}, e.IBV_WC_REM_ACCESS_ERR),
        ('a range out of bounds', e.IBV_WR_RDMA_WRITE, {'address': 4090}, e.IBV_WC_REM_ACCESS_ERR),
        ('a wrong local key', e.IBV_WR_SEND, {'lkey': 0xdead00}, e.IBV_WC_LOC_PROT_ERR),
        ('a message too long', e.IBV_WR_SEND, {'length': 512}, e.IBV_WC_REM_INV_REQ_ERR),
    ]
    for name, opcode, change, status in cases:
        left, right = pair(context)
        right.receive()
        options = {}
        if opcode == e.IBV_WR_RDMA_WRITE:
            options = {'key': change.get('key', right.mr.rkey),
                       'address': right.mr.buf + change.get('address', 0)}
        options.update({k: v for k, v in change.items() if k in ('lkey', 'length')})
        left.post(opcode, **options)
        found = left.complete()
        check(found.status == status, f'{name}: {e.ibv_wc_status(found.status)!r}'
              if hasattr(e, 'ibv_wc_status') else f'{name}: {found.status}')
        check(left.state() == e.IBV_QPS_ERR, f'{name}: the queue pair goes to ERROR')
        left.post(e.IBV_WR_SEND)
        check(left.complete().status == e.IBV_WC_WR_FLUSH_ERR, f'{name}: what follows is flushed')
    left, right = pair(context)
    left.post(e.IBV_WR_SEND)
    check(left.complete().status == e.IBV_WC_RNR_RETRY_EXC_ERR, 'nobody receives')


def limits(context):
    left, right = pair(context)
    for _ in range(16):
        right.receive()
    refused(right.receive, expected=(errno.ENOMEM,))
    piece = SGE(left.mr.buf, 1, left.mr.lkey)
    refused(left.qp.post_send, SendWR(opcode=e.IBV_WR_SEND, num_sge=3, sg=[piece] * 3))
    refused(left.qp.post_send, SendWR(opcode=e.IBV_WR_SEND, num_sge=1,
                                      sg=[SGE(left.mr.buf, 65, 0)], send_flags=e.IBV_SEND_INLINE))
    refused(CQ, context, 0)
    refused(context.query_port, 2)
    left.cq.resize(128)
    check(left.cq.cqe >= 128, 'a completion queue grows')


def extended(context):
    left, right = pair(context, extended=True)
    left.mr.write('by the new ways.', 16)
    left.qp.wr_start()
    left.qp.wr_id = 5
    left.qp.wr_flags = e.IBV_SEND_SIGNALED
    left.qp.wr_rdma_write(right.mr.rkey, right.mr.buf)
    left.qp.wr_set_sge(SGE(left.mr.buf, 16, left.mr.lkey))
    left.qp.wr_complete()
    check(left.complete().wr_id == 5, 'a request of the new interface completes')
    check(right.mr.read(16, 0) == b'by the new ways.', 'and has arrived')
    cq = CQEX(context, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP))
    del cq
    refused(CQEX, context, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_EX_WITH_TM_INFO),
            expected=(errno.EOPNOTSUPP,))
    domain = ParentDomain(context, ParentDomainInitAttr(PD(context)))
    check(MR(domain, 64, ALL).rkey != 0, 'a parent domain registers memory')


def main():
    context = Context(name=sys.argv[1])
    check(context.query_port(1).state == e.IBV_PORT_ACTIVE, 'the port is up')
    check(len(context.query_gid_table(16)) >= 1, 'there is a GID')
    for part in (states, transfers, errors, limits, extended):
        part(context)
        print(f'{part.__name__}: good')
    print(f'{steps} steps as they should be')


if __name__ == '__main__':
    main()
