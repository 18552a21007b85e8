#!/usr/bin/env python3
"""Moves bytes between two processes with Mooncake's transfer engine, protocol rdma, and checks them.

By hand (docs/drop-in.md): Mooncake is no Debian package. Knows nothing of Millrace.

usage: mooncake_transfer.py [DEVICE [MEGABYTES]]        (default: soft0 1)
"""
import ctypes
import hashlib
import subprocess
import sys
import time

from mooncake.engine import TransferEngine

device = sys.argv[1] if len(sys.argv) > 1 else "soft0"
size = int(sys.argv[2] if len(sys.argv) > 2 else "1") << 20


def start_engine():
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) != 0:
        sys.exit(f"the transfer engine does not start on {device}")
    return engine


def register(engine, memory):
    if engine.register_memory(ctypes.addressof(memory), size) != 0:
        sys.exit("the transfer engine cannot register memory")
    return ctypes.addressof(memory)


def digest(memory):
    return hashlib.sha256(bytes(memory)).hexdigest()


def serve():
    """Offers memory, and says of each line it reads what is in the memory by then."""
    engine = start_engine()
    memory = (ctypes.c_ubyte * size)()
    print(f"at 127.0.0.1:{engine.get_rpc_port()} {register(engine, memory)}", flush=True)
    for _ in sys.stdin:
        print(digest(memory), flush=True)
    engine.unregister_memory(ctypes.addressof(memory))


def timed(what, call, *arguments):
    begin = time.monotonic()
    if call(*arguments) != 0:
        sys.exit(f"the transfer engine cannot {what}")
    seconds = time.monotonic() - begin
    print(f"{what}: {size >> 20} MiB in {seconds * 1e3:.1f} ms")


def main():
    server = subprocess.Popen([sys.executable, __file__, device, str(size >> 20), "serve"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            if line.startswith("at "):
                break
        else:
            sys.exit("the other process did not start")
        _, session, address = line.split()
        engine = start_engine()
        memory = (ctypes.c_ubyte * size).from_buffer(bytearray(
            (index * 2654435761 >> 7) & 0xff for index in range(1 << 16)) * (size >> 16))
        local = register(engine, memory)
        sent = digest(memory)
        timed("write", engine.transfer_sync_write, session, local, int(address), size)
        server.stdin.write("look\n")
        server.stdin.flush()
        if server.stdout.readline().strip() != sent:
            sys.exit("other bytes arrived than were written")
        ctypes.memset(local, 0, size)
        timed("read", engine.transfer_sync_read, session, local, int(address), size)
        if digest(memory) != sent:
            sys.exit("other bytes came back than were written")
        engine.unregister_memory(local)
        server.stdin.close()
        if server.wait(timeout=40) != 0:
            sys.exit("the other process ended badly")
        print("all bytes as they should be")
    finally:
        if server.poll() is None:
            server.kill()


if len(sys.argv) > 3 and sys.argv[3] == "serve":
    serve()
else:
    main()
