#!/usr/bin/env python3
"""Programs that connect by librdmacm on the drop-in and what each is held against, in alternating rounds.

rsockets (rstream) beside perftest over RDMA, and valkey over RDMA beside the same server over TCP, where a
valkey-benchmark with --rdma is in the PATH. On an otherwise idle machine:

    bench/drop_in/connecting.py --build build/release
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 60
port = 20_000 + os.getpid() % 10_000


def served(server, client, environment, enough):
    """What the client says once it has what the pattern `enough` finds; asked again until the server is there."""
    global port
    port += 1
    fill = lambda words: [word.replace("PORT", str(port)) for word in words]  # noqa: E731
    running = subprocess.Popen(["taskset", "-c", "0", *fill(server)], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            said = subprocess.run(["taskset", "-c", "1", *fill(client)], env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE).stdout
            found = re.search(enough, said, re.MULTILINE)
            if found:
                return float(found.group(1))
            time.sleep(0.05)
        sys.exit(f"{' '.join(client)} said:\n{said}")
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(PATIENCE)


def rstream(size, count, column):
    words = ["rstream", "-p", "PORT", "-S", str(size), "-C", str(count)]
    last = {"Gb/sec": r"(\S+)\s+\S+\s*$", "usec/xfer": r"(\S+)\s*$"}[column]
    return lambda environment: served(words, [*words, "-s", "127.0.0.1"], environment, r"^custom.*\s" + last)


def perftest(program, size, count, skipped):
    words = [program, "-d", "soft0", "-F", "-p", "PORT", "-s", str(size), "-n", str(count), "--report_gbits"]
    line = rf"^\s*{size}\s+" + r"\S+\s+" * skipped + r"(\S+)"
    return lambda environment: served(words, [*words, "127.0.0.1"], environment, line)


def valkey(rdma):
    ports = ["--port", "0", "--rdma-port", "PORT", "--rdma-bind", "127.0.0.1"] if rdma else ["--port", "PORT"]
    return lambda environment: served(
        ["valkey-server", *ports, "--save", ""],
        ["valkey-benchmark", *(["--rdma"] if rdma else []), "-h", "127.0.0.1", "-p", "PORT", "-c", "50",
         "-n", "30000", "-d", "100", "-t", "get", "-q"], environment, r"GET: (\S+) requests per second")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    environment = dict(os.environ, MILLRACE_FABRIC=f"connecting-{os.getpid()}",
                       LD_LIBRARY_PATH=os.path.join(os.path.abspath(arguments.build), "lib", "millrace"))
    pairs = [("rstream -S 64 to ib_send_lat, us", rstream(64, 20_000, "usec/xfer"),
              perftest("ib_send_lat", 64, 20_000, 3)),
             ("rstream -S 1048576 to ib_write_bw, Gb/s", rstream(1 << 20, 1_000, "Gb/sec"),
              perftest("ib_write_bw", 1 << 20, 2_000, 2))]
    if shutil.which("valkey-benchmark"):
        pairs.append(("valkey GET, 50 clients, RDMA to TCP, 1/s", valkey(True), valkey(False)))
    for name, ours, other in pairs:
        rounds = [(ours(environment), other(environment)) for _ in range(arguments.rounds)]
        ratios = sorted(one / two for one, two in rounds)
        print(f"{name}: {statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
              f"{statistics.median(one for one, _ in rounds):.2f} to {statistics.median(two for _, two in rounds):.2f}",
              flush=True)


main()
