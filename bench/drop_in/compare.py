#!/usr/bin/env python3
"""Unmodified ib_write_lat on the drop-in beside bare process_vm_writev, in alternating rounds.

perftest's buffers are private memory, so every WRITE ends in process_vm_writev: what the drop-in
adds to that call is the ratio printed here. Run it on an otherwise idle machine:

    bench/drop_in/compare.py --build build/release
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False


def ib_write_lat(arguments, environment):
    port = free_port()
    command = ["ib_write_lat", "-d", "soft0", "-p", str(port), "-F",
               "-s", str(arguments.bytes), "-n", str(arguments.iterations)]
    server = subprocess.Popen(["taskset", "-c", arguments.cores[0], *command], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        limit = time.monotonic() + 10
        while not listens(port):
            if time.monotonic() > limit:
                sys.exit("ib_write_lat's server does not listen")
            time.sleep(0.01)
        client = subprocess.run(["taskset", "-c", arguments.cores[1], *command, "127.0.0.1"],
                                env=environment, capture_output=True, text=True, timeout=60)
        server.wait(timeout=10)
    finally:
        server.kill()
    for line in client.stdout.splitlines():
        fields = re.split(r"\s+", line.strip())
        if fields[0] == str(arguments.bytes):
            return float(fields[4])  # t_typical
    sys.exit(f"ib_write_lat said:\n{client.stdout}{client.stderr}")


def process_vm(arguments):
    program = os.path.join(arguments.build, "bin", "process_vm")
    output = subprocess.run([program, str(arguments.bytes), str(arguments.iterations),
                             *arguments.cores], check=True, capture_output=True, text=True,
                            timeout=60).stdout
    one_way, call = output.split()
    return float(one_way), float(call)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cores", nargs=2, default=["0", "1"], metavar=("SERVER", "CLIENT"))
    arguments = parser.parse_args()
    environment = dict(os.environ, MILLRACE_FABRIC=f"compare-{os.getpid()}",
                       LD_LIBRARY_PATH=os.path.join(os.path.abspath(arguments.build), "lib",
                                                    "millrace"))
    ratios, call_ratios = [], []
    for number in range(1, arguments.rounds + 1):
        one_way, call = process_vm(arguments)
        ours = ib_write_lat(arguments, environment)
        ratios.append(ours / one_way)
        call_ratios.append(ours / call)
        print(f"round {number:2}: process_vm_writev {one_way:.2f} us one way (call {call:.2f}), "
              f"ib_write_lat {ours:.2f} us, ratio {ratios[-1]:.2f}", flush=True)
    print(f"{arguments.bytes} bytes, median of {len(ratios)} rounds: ib_write_lat takes "
          f"{statistics.median(ratios):.2f} times the bare exchange "
          f"({min(ratios):.2f} to {max(ratios):.2f}), "
          f"{statistics.median(call_ratios):.2f} times the bare call")


if __name__ == "__main__":
    main()
