"""A program that loads a librdmacm by dlopen, closes it, loads it again, and becomes another program.

Usage: loaded.py LIBRARY PORT PROGRAM [ARGUMENT]... LIBRARY may have any name, as the copies in Python's packages. An
id listens at PORT when dlclose and exec come; neither ends it by rdma_destroy_id. connection_manager_test.cpp runs it.
"""
import _ctypes
import ctypes
import os
import socket
import struct
import sys

path, port, *program = sys.argv[1:]
RDMA_PS_TCP = 0x0106


def listen(library):
    library.rdma_create_event_channel.restype = ctypes.c_void_p
    channel = library.rdma_create_event_channel()
    assert channel, 'rdma_create_event_channel'
    end = ctypes.c_void_p()
    assert library.rdma_create_id(ctypes.c_void_p(channel), ctypes.byref(end), None, RDMA_PS_TCP) == 0
    address = struct.pack('=HH4s8x', socket.AF_INET, socket.htons(int(port)), socket.inet_aton('127.0.0.1'))
    assert library.rdma_bind_addr(end, address) == 0, f'bind: {os.strerror(ctypes.get_errno())}'
    assert library.rdma_listen(end, 1) == 0
    return channel, end


library = ctypes.CDLL(path, use_errno=True)
channel, end = listen(library)
assert library.rdma_destroy_id(end) == 0
library.rdma_destroy_event_channel(ctypes.c_void_p(channel))
_ctypes.dlclose(library._handle)
listen(ctypes.CDLL(path, use_errno=True))
sys.stdout.flush()
os.execvp(program[0], program)
