"""Imported devices, protection domains, regions and device memory through pyverbs: an unmodified
Python program on a verbs device.

Usage: imports.py DEVICE [DESCRIPTOR: of an open device, as the process that this one starts].
Ends with status 0 when every step did what the manual pages of
ibv_import_device, ibv_import_pd, ibv_import_mr and ibv_import_dm say, and another process is told
ENODEV, which is what the soft device does (docs/decisions/0016). programs_test.cpp runs it on that.
"""
import errno
import os
import subprocess
import sys
import time

from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
steps = 0


def check(condition, what):
    global steps
    steps += 1
    if not condition:
        raise AssertionError(what)


def refused(call, *arguments, expected, **named):
    try:
        call(*arguments, **named)
    except PyverbsRDMAError as error:
        check(error.error_code == expected, f'{call}: errno {error.error_code}')
    else:
        raise AssertionError(f'{call} was not refused')


class Queue:
    """A queue pair with its completion queue, in a protection domain that somebody else made."""

    def __init__(self, context, pd):
        self.cq = CQ(context, 64)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                    cap=QPCap(16, 16, 2, 2, 0)))

    def connect(self, peer):
        wanted = QPAttr(port_num=1)
        wanted.qp_access_flags = ALL
        wanted.dest_qp_num = peer.qp.qp_num
        wanted.path_mtu = e.IBV_MTU_1024
        wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
        wanted.retry_cnt = wanted.rnr_retry = 7
        wanted.timeout = 14
        wanted.min_rnr_timer = 1
        wanted.ah_attr = AHAttr(dlid=1, port_num=1)
        self.qp.to_rts(wanted)

    def carry_out(self, opcode, piece, key, address):
        request = SendWR(opcode=opcode, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_rdma(key, address)
        self.qp.post_send(request)
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            count, completions = self.cq.poll()
            if count:
                return completions[0].status
        raise AssertionError('no completion within a minute')


def names(context):
    imported = Context(cmd_fd=os.dup(context.cmd_fd))
    check(imported.query_port(1).state == e.IBV_PORT_ACTIVE, 'an imported device has its port')
    pd = PD(context)
    check(PD(imported, handle=pd.handle).handle == pd.handle, 'a domain keeps its handle')
    refused(PD, imported, handle=pd.handle + 1000, expected=errno.ENOENT)
    mr = MR(pd, 4096, ALL)
    twin = MR(pd, handle=mr.handle, address=mr.buf)
    check((twin.lkey, twin.rkey, twin.length) == (mr.lkey, mr.rkey, 4096), 'a region keeps its keys')
    twin.unimport()
    refused(MR, pd, handle=mr.handle + 1000, address=mr.buf, expected=errno.ENOENT)


def transfers(context):
    """One end is made of imported objects only, and is taken down from the outside in."""
    home = PD(context)
    memory = MR(home, 4096, ALL)
    imported = Context(cmd_fd=os.dup(context.cmd_fd))
    pd = PD(imported, handle=home.handle)
    twin = MR(pd, handle=memory.handle, address=memory.buf)
    near = Queue(imported, pd)
    other = PD(context)
    far_memory = MR(other, 4096, ALL)
    far = Queue(context, other)
    near.connect(far)
    far.connect(near)
    memory.write('out of the import', 17)
    status = near.carry_out(e.IBV_WR_RDMA_WRITE, SGE(memory.buf, 17, twin.lkey), far_memory.rkey,
                            far_memory.buf)
    check(status == e.IBV_WC_SUCCESS, 'a WRITE from an imported region')
    check(far_memory.read(17, 0) == b'out of the import', 'has arrived')
    far_memory.write('into the import', 15)
    status = far.carry_out(e.IBV_WR_RDMA_WRITE, SGE(far_memory.buf, 15, far_memory.lkey),
                           twin.rkey, memory.buf + 64)
    check(status == e.IBV_WC_SUCCESS, 'a WRITE into an imported region')
    check(memory.read(15, 64) == b'into the import', 'has arrived')
    twin.unimport()
    pd.unimport()
    imported.close()
    check(memory.read(15, 64) == b'into the import', 'the original is as it was')
    memory.write('still there', 11)
    again = Queue(context, home)
    far = Queue(context, other)
    again.connect(far)
    far.connect(again)
    status = far.carry_out(e.IBV_WR_RDMA_READ, SGE(far_memory.buf, 11, far_memory.lkey),
                           memory.rkey, memory.buf)
    check(status == e.IBV_WC_SUCCESS, 'a READ of the original')
    check(far_memory.read(11, 0) == b'still there', 'has arrived')


def device_memory(context):
    memory = DM(context, AllocDmAttr(length=256))
    imported = Context(cmd_fd=os.dup(context.cmd_fd))
    twin = DM(imported, handle=memory.handle)
    twin.copy_to_dm(16, b'on the device', 13)
    check(memory.copy_from_dm(16, 13) == b'on the device', 'one memory by two handles')
    twin.unimport()
    check(memory.copy_from_dm(16, 13) == b'on the device', 'and it stays')
    descriptor = os.dup(context.cmd_fd)
    subprocess.run([sys.executable, sys.argv[0], sys.argv[1], str(descriptor)],
                   pass_fds=[descriptor], check=True, timeout=60)
    check(memory.copy_from_dm(16, 13) == b'on the device', 'and another process changes nothing')


def other_process(descriptor):
    refused(Context, cmd_fd=descriptor, expected=errno.ENODEV)


def main():
    if len(sys.argv) == 3:
        other_process(int(sys.argv[2]))
        return
    context = Context(name=sys.argv[1])
    for part in (names, transfers, device_memory):
        part(context)
        print(f'{part.__name__}: good')
    print(f'{steps} steps as they should be')


if __name__ == '__main__':
    main()
