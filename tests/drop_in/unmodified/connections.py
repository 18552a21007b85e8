"""Two programs that connect by pyverbs' rdma_cm and exchange messages of every length up to 4 KiB.

Usage: connections.py server|client PORT. Both end with status 0 when every message was as it should be. Neither
knows of the soft device; connection_manager_test.cpp runs them on that.
"""
import sys

from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr
import pyverbs.cm_enums as ce
import pyverbs.enums as e

side, port = sys.argv[1:]
LENGTHS = [1, 2, 63, 64, 1024, 4096]


def attributes():
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=2, max_recv_wr=2))


def message(length, sender):
    return (sender * length)[:length]


def receive(end, region, length, sender):
    end.get_recv_comp()
    said = region.read(length, 0).decode()
    assert said == message(length, sender), f'{length} bytes of {sender} are {said[:20]}'


def send(end, region, length):
    region.write(message(length, side), length)
    end.post_send(region, length=length)
    end.get_send_comp()


def serve():
    listener = CMID(creator=AddrInfo(src='127.0.0.1', src_service=port, port_space=ce.RDMA_PS_TCP,
                                     flags=ce.RAI_PASSIVE), qp_init_attr=attributes())
    listener.listen()
    end = listener.get_request()
    incoming, outgoing = end.reg_msgs(4096), end.reg_msgs(4096)
    end.post_recv(incoming)
    end.accept()
    for length in LENGTHS:
        receive(end, incoming, length, 'client')
        end.post_recv(incoming)
        send(end, outgoing, length)
    end.disconnect()


def call():
    end = CMID(creator=AddrInfo(dst='127.0.0.1', dst_service=port, port_space=ce.RDMA_PS_TCP),
               qp_init_attr=attributes())
    incoming, outgoing = end.reg_msgs(4096), end.reg_msgs(4096)
    end.post_recv(incoming)
    end.connect()
    for length in LENGTHS:
        send(end, outgoing, length)
        receive(end, incoming, length, 'server')
        if length != LENGTHS[-1]:
            end.post_recv(incoming)
    end.disconnect()


serve() if side == 'server' else call()
print(f'{side}: {len(LENGTHS)} messages as they should be')
