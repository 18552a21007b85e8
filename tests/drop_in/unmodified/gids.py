"""The GID table of a verbs device, as a program finds it that has to choose from it.

Usage: gids.py DEVICE ethernet|infiniband. Ends with status 0 when the port is of that kind, its table
is that of the host's addresses, and each entry can be sent from and to. It knows nothing of the soft
device; programs_test.cpp runs it on that.
"""
import errno
import fcntl
import resource
import socket
import struct
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

device, kind = sys.argv[1], sys.argv[2]
ethernet = kind == 'ethernet'
QKEY = 0x11111111
steps = 0


def check(condition, what):
    global steps
    steps += 1
    if not condition:
        raise AssertionError(what)


def text_of(path):
    with open(f'/sys/class/infiniband/{device}/ports/1/{path}', encoding='ascii') as file:
        return file.read().strip()


def raw(gid):
    return bytes.fromhex(gid.replace(':', ''))


def host_addresses():
    """The first IPv4 address of each interface that is up, without the loopback's."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack('256s', name.encode())
            try:
                flags, = struct.unpack_from('H', fcntl.ioctl(asker, 0x8913, request), 16)
                address = fcntl.ioctl(asker, 0x8915, request)[20:24]
            except OSError:
                continue
            if flags & 0x1 and not flags & 0x8:
                found[name] = address
    return found or {'lo': bytes((127, 0, 0, 1))}


def chosen_as_nccl_does(count):
    """Of the entries of RoCE version 2, the first that is an IPv4 address."""
    for index in range(count):
        if raw(text_of(f'gids/{index}'))[:12] == bytes(10) + b'\xff\xff' and \
                'RoCE v2' in text_of(f'gid_attrs/types/{index}'):
            return index
    return -1


class Station:
    """A queue pair for datagrams, with memory."""

    def __init__(self, context):
        self.pd = PD(context)
        self.mr = MR(self.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
        self.cq = CQ(context, 16)
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq,
                          cap=QPCap(16, 16, 1, 1, 0))
        attributes = QPAttr(port_num=1)
        attributes.qkey = QKEY
        self.qp = QP(self.pd, init, attributes)

    def receive(self):
        self.qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[SGE(self.mr.buf, 1024, self.mr.lkey)]))

    def send(self, handle, number):
        wr = SendWR(wr_id=2, opcode=e.IBV_WR_SEND, num_sge=1,
                    sg=[SGE(self.mr.buf + 2048, 64, self.mr.lkey)],
                    send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(handle, number, QKEY)
        self.qp.post_send(wr)

    def completion(self, identity):
        until = time.monotonic() + 40
        while time.monotonic() < until:
            count, completions = self.cq.poll(1)
            if count and completions[0].wr_id == identity:
                return completions[0]
        raise AssertionError('no completion')


def attributes_to(gid, index):
    return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=index))


def check_header(station, completion, gid, index):
    check(completion.status == e.IBV_WC_SUCCESS and completion.wc_flags & e.IBV_WC_GRH,
          f'GID {index}: it arrives with its header')
    header = station.mr.read(40, 0)
    check(header[8:24] == raw(gid.gid) and header[24:40] == raw(gid.gid),
          f'GID {index}: the header has both GIDs')
    check(header[6] == (17 if ethernet and index % 2 == 1 else 0x1b),
          f'GID {index}: the header says which version of RoCE it is')


def exchange(context, gid, index):
    """There from `index` to itself, and back to where it came from."""
    left, right = Station(context), Station(context)
    right.receive()
    left.send(AH(left.pd, attr=attributes_to(gid, index)), right.qp.qp_num)
    there = right.completion(1)
    check_header(right, there, gid, index)
    left.receive()
    right.send(AH(right.pd, wc=there, grh=right.mr.buf, port_num=1), there.src_qp)
    check_header(left, left.completion(1), gid, index)


def main():
    context = Context(name=device)
    port = context.query_port(1)
    check(port.link_layer ==
          (e.IBV_LINK_LAYER_ETHERNET if ethernet else e.IBV_LINK_LAYER_INFINIBAND),
          'the link layer')
    check(text_of('link_layer') == ('Ethernet' if ethernet else 'InfiniBand'),
          'the link layer in sysfs')
    count = port.gid_tbl_len
    table = context.query_gid_table(count)
    check([entry.gid_index for entry in table] == list(range(count)), 'the table has no gaps')
    try:
        context.query_gid_table(count - 1)
    except PyverbsRDMAError as error:
        check(abs(error.error_code) == errno.EINVAL, 'a table without room is refused by EINVAL')
    else:
        raise AssertionError('a table without room is not refused')

    for entry in table:
        index = entry.gid_index
        single = context.query_gid_ex(1, index)
        check(single.gid_str() == entry.gid_str() and
              raw(single.gid_str()) == raw(context.query_gid(1, index).gid),
              f'GID {index}: one GID, however it is asked for')
        check(raw(text_of(f'gids/{index}')) == raw(entry.gid_str()), f'GID {index}: also in sysfs')
        version_2 = ethernet and index % 2 == 1
        check(entry.gid_type == (e.IBV_GID_TYPE_ROCE_V2 if version_2 else
                                 e.IBV_GID_TYPE_ROCE_V1 if ethernet else e.IBV_GID_TYPE_IB),
              f'GID {index}: its type')
        check(context.query_gid_type(1, index) == (1 if version_2 else 0),
              f'GID {index}: its type, as drivers ask')
        check(text_of(f'gid_attrs/types/{index}') == ('RoCE v2' if version_2 else 'IB/RoCE v1'),
              f'GID {index}: its type in sysfs')
        if ethernet:
            check(text_of(f'gid_attrs/ndevs/{index}') == socket.if_indextoname(entry.ndev_ifindex),
                  f'GID {index}: its network interface')
        exchange(context, context.query_gid(1, index), index)

    if ethernet:
        for name, address in host_addresses().items():
            mapped = bytes(10) + b'\xff\xff' + address
            indices = [entry.gid_index for entry in table if raw(entry.gid_str()) == mapped]
            check(len(indices) == 2 and
                  socket.if_indextoname(table[indices[0]].ndev_ifindex) == name,
                  f'the address of {name} is there, for each version of RoCE')
        check(chosen_as_nccl_does(count) == 3, 'the first IPv4 address has index 3')
    else:
        check(count == 1, 'an InfiniBand port has its own GID')

    # Without a free descriptor the system does not tell its addresses: the table stays as it is.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    context.query_port(1)
    last = context.query_gid(1, count - 1).gid
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    check(raw(last) == raw(table[-1].gid_str()), 'the table stays where nobody can be asked')

    pd = PD(context)
    for wrong in (count, 255):
        try:
            AH(pd, attr=attributes_to(context.query_gid(1, 0), wrong))
        except PyverbsRDMAError as error:
            check(error.error_code == errno.EINVAL, 'a source that is not there: EINVAL')
        else:
            raise AssertionError(f'a handle from GID {wrong}, which is not there')
    print(steps, 'steps as they should be')


main()
