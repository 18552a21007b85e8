#!/usr/bin/env python3
"""Looks at the soft device's files under /dev and /sys as programs look at a NIC's.

usage: files.py DEVICE. Knows nothing of Millrace: Python's own functions, and those of the C library
by ctypes, which programs in other languages call.
"""
import ctypes
import errno
import os
import stat
import sys

name = sys.argv[1]
steps = 0


def check(what, truth):
    global steps
    if not truth:
        sys.exit(f"step {steps + 1}: {what} is not so")
    steps += 1


def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def text_of(path):
    with open(path, encoding="ascii") as file:
        return file.read()


# The character device: stat, S_ISCHR, access, open, as UCX and others ask.
node = f"/dev/infiniband/uverbs_{name}"
check("the character device is one", stat.S_ISCHR(os.stat(node).st_mode))
check("it may be read and written", os.access(node, os.R_OK | os.W_OK))
check("it is no program", not os.access(node, os.X_OK))
os.close(os.open(node, os.O_RDWR))
check("its folder shows it", f"uverbs_{name}" in os.listdir("/dev/infiniband"))
check("others are not there", refused(os.stat, "/dev/infiniband/uverbs_no_soft") == errno.ENOENT)

# That of librdmacm, which programs look for before they try it.
manager = "/dev/infiniband/rdma_cm"
check("rdma_cm is a character device", stat.S_ISCHR(os.stat(manager).st_mode))
check("it may be read and written, too", os.access(manager, os.R_OK | os.W_OK))
check("the folder shows it, too", "rdma_cm" in os.listdir("/dev/infiniband"))
check("it speaks version 4", text_of("/sys/class/misc/rdma_cm/abi_version") == "4\n")

# The folder in /sys/class is a link, as sysfs has them.
device = f"/sys/class/infiniband/{name}"
check("/sys/class/infiniband shows the device", name in os.listdir("/sys/class/infiniband"))
check("the class is a folder", os.path.isdir("/sys/class/infiniband/"))
check("the device is a link there", os.path.islink(device) and os.path.isdir(device))
function = os.path.realpath(f"{device}/device")
check("it leads to a PCI function",
      function == os.path.realpath(os.path.join(os.path.realpath(device), "../..")))
check("the bus knows that function",
      os.path.realpath(f"/sys/bus/pci/devices/{os.path.basename(function)}") == function)
check("the link is read as it is written",
      os.readlink(f"{device}/device") == f"../../../{os.path.basename(function)}")
check("a folder is no link", refused(os.readlink, f"{device}/ports/") == errno.EINVAL)
check("the function names the device", os.listdir(f"{function}/infiniband") == [name])
check("the subsystem is the PCI bus", os.path.realpath(f"{function}/subsystem") == "/sys/bus/pci")
check("a way out of the files is the kernel's",
      os.path.realpath(f"{device}/../../../../../..") == "/" and
      os.listdir(f"{device}/../../../../..") == os.listdir("/sys"))

# Files: text with a newline, for reading only.
check("the port is active", text_of(f"{device}/ports/1/state") == "4: ACTIVE\n")
check("no node of memory is nearest", text_of(f"{function}/numa_node") == "-1\n")
check("the PCI vendor is a number", int(text_of(f"{function}/vendor"), 0) > 0)
check("the verbs device names the device",
      text_of(f"/sys/class/infiniband_verbs/uverbs_{name}/ibdev") == f"{name}\n")
check("the link layer is one of two",
      text_of(f"{device}/ports/1/link_layer") in ("Ethernet\n", "InfiniBand\n"))
check("a file says its kind", stat.S_ISREG(os.lstat(f"{device}/node_type").st_mode))
check("it is not written", refused(os.open, f"{device}/node_type", os.O_WRONLY) == errno.EACCES)
check("it may be read and not written", os.access(f"{device}/node_type", os.R_OK) and
      not os.access(f"{device}/node_type", os.W_OK))
check("no such file", refused(open, f"{device}/ports/1/no_such_file") == errno.ENOENT)
check("no file is a folder", refused(os.stat, f"{device}/node_type/x") == errno.ENOTDIR)
check("no such port", not os.path.exists(f"{device}/ports/2"))

# By the descriptor of a folder, as C++'s recursive_directory_iterator goes.
folder = os.open(f"{device}/ports", os.O_RDONLY | os.O_DIRECTORY)
check("a folder is listed by its descriptor", os.listdir(folder) == ["1"])
file = os.open("1/state", os.O_RDONLY, dir_fd=folder)
check("a file is opened from there", os.read(file, 64) == b"4: ACTIVE\n")
check("and looked at", stat.S_ISREG(os.stat("1/lid", dir_fd=folder).st_mode))
os.close(file)
os.close(folder)
root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
check("other folders stay the kernel's", "proc" in os.listdir(root))
os.close(root)

# All GIDs: each has its text and its type.
gids = sorted(int(number) for number in os.listdir(f"{device}/ports/1/gids"))
check("there is a GID", gids and gids == list(range(len(gids))))
for number in gids:
    raw = text_of(f"{device}/ports/1/gids/{number}").strip().replace(":", "")
    check(f"GID {number} has 16 bytes", len(bytes.fromhex(raw)) == 16)
    check(f"GID {number} has a type", text_of(f"{device}/ports/1/gid_attrs/types/{number}") in
          ("IB/RoCE v1\n", "RoCE v2\n"))

# Walks, as tools do them.
found = sorted(os.path.relpath(os.path.join(at, file), function)
               for at, _, files in os.walk(function) for file in files)
check("a walk comes to the files of the port", f"infiniband/{name}/ports/1/lid" in found)
check("and each can be read", all(text_of(os.path.join(function, file)) for file in found
                                  if not os.path.islink(os.path.join(function, file))))

# The C library's own realpath, opendir and fopen.
libc = ctypes.CDLL(None, use_errno=True)
libc.realpath.restype = ctypes.c_char_p
check("realpath(3) takes links out of a path",
      libc.realpath(f"{device}/../..".encode(), ctypes.create_string_buffer(4096)) ==
      function.encode())
check("realpath(3) says what is not there",
      libc.realpath(f"{device}/no_such_file".encode(), ctypes.create_string_buffer(4096)) is None
      and ctypes.get_errno() == errno.ENOENT)
libc.fopen.restype = ctypes.c_void_p
libc.fgets.restype = ctypes.c_char_p
libc.fgets.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
stream = libc.fopen(f"{device}/ports/1/phys_state".encode(), b"re")
check("fopen(3) reads", libc.fgets(ctypes.create_string_buffer(64), 64, stream) == b"5: LinkUp\n")
libc.fclose(stream)
check("fopen(3) does not write", libc.fopen(f"{device}/node_type".encode(), b"w") is None)
names = ctypes.c_void_p()
check("scandir(3) lists", libc.scandir(device.encode(), ctypes.byref(names), None, None) > 10)

# What is nobody's business of ours is as ever.
check("other files are the kernel's", text_of("/proc/sys/kernel/ostype") == "Linux\n")
check("other folders, too", "self" in os.listdir("/proc"))
check("what is missing elsewhere is missing", refused(os.stat, "/sys/soft9") == errno.ENOENT)
print(f"{steps} steps as they should be")
