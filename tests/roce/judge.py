# What scapy reads in the packets of a file, a line each: the fields of the BTH, and whether the
# ICRC is the one that it computes; over IPv6, for which scapy has none, the one of the standard's
# masked headers (annex A17), built here by scapy. Called by packet_test.cpp.
import sys
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from scapy.utils import rdpcap


def icrc_over_ipv6(packet):
    masked = packet.copy()
    masked.tc, masked.fl, masked.hlim = 0xff, 0xfffff, 0xff
    masked[UDP].chksum = 0xffff
    transport = bytearray(bytes(packet[UDP].payload))
    transport[4] = 0xff
    masked[UDP].remove_payload()
    headers = bytes(masked / Raw(bytes(transport)))
    return zlib.crc32(b"\xff" * 8 + headers[:-4]).to_bytes(4, "little")


def icrc_over_ipv4(packet):
    again = packet.copy()
    again[BTH].icrc = None
    # Written again by scapy, which computes the checksum where there is none.
    return bytes(again)[-4:]


for frame in rdpcap(sys.argv[1]):
    bth = frame[BTH]
    computed = icrc_over_ipv6(frame[IPv6]) if IPv6 in frame else icrc_over_ipv4(frame[IP])
    print(bth.opcode, bth.solicited, bth.padcount, bth.pkey, bth.dqpn, bth.ackreq, bth.psn,
          "right" if bytes(frame)[-4:] == computed else "wrong")
