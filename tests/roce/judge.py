# What scapy reads in the packets of a file, a line each: the fields of the BTH, and whether the
# ICRC is the one that it computes. Called by packet_test.cpp.
import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.utils import rdpcap

for frame in rdpcap(sys.argv[1]):
    bth = frame[BTH]
    sent = bytes(frame[IP])[-4:]
    again = frame[IP].copy()
    again[BTH].icrc = None
    # Written again by scapy, which computes the checksum where there is none.
    computed = bytes(again)[-4:]
    print(bth.opcode, bth.solicited, bth.padcount, bth.pkey, bth.dqpn, bth.ackreq, bth.psn,
          "right" if sent == computed else "wrong")
