"""What the scripts that run other people's test suites on the soft device have in common: how a program
is started on the drop-in, and how outcomes are compared with a list of expected differences.

A list has one difference a line, `NAME: reason`; `#` begins a comment. A difference is a test that does
not pass. One that is not in the list fails, and so does an entry that passes or is not there any
more: the list only ever tells what is true. `NAME [MODE]: reason` holds in that mode of the soft device
only (fast, shaped, strict, faulty), `NAME [not MODE]: reason` in all the others.
"""
import os
import re
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def add_arguments(parser):
    parser.add_argument("sources", metavar="SOURCES", help="folder with the suite's sources")
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build/release"),
                        help="folder of our build (default: build/release)")
    parser.add_argument("--mode", default="fast", help="mode of the soft device (docs/modes.md)")
    parser.add_argument("--log", metavar="FILE", help="where the suite's own output goes")


def program_on_soft_device(arguments, fabric, command):
    """The command line that starts `command` as docs/drop-in.md says."""
    millrace = os.path.join(arguments.build, "bin/millrace")
    if not os.access(millrace, os.X_OK):
        sys.exit(f"{millrace} is not there: build Millrace first (make build), or name its folder "
                 "with --build")
    return ([millrace, "soft", "run", "--fabric", f"foreign-{os.getpid()}-{fabric}",
             "--mode", arguments.mode, "--"] + command)


def read_list(path, mode):
    """{name: reason} of the entries that hold in this mode."""
    expected = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            entry = re.fullmatch(r"(\S+?)(?: \[(not )?(\w+)\])?: (.+)", line)
            if entry is None:
                sys.exit(f"{path}:{number}: no entry of the form 'NAME: reason': {line}")
            name, inverted, only, reason = entry.groups()
            if only is None or (only == mode.split(":")[0]) != bool(inverted):
                expected[name] = reason
    return expected


def compare(outcomes, expected, path):
    """Prints the counts and what is not as the list at `path` says; True if all is."""
    differing = {name for name, outcome in outcomes.items() if outcome == FAILED}
    new = sorted(differing - expected.keys())
    over = sorted(name for name in expected if outcomes.get(name) == PASSED)
    gone = sorted(name for name in expected if outcomes.get(name) in (None, SKIPPED))
    for name in new:
        print(f"new difference: {name}")
    for name in over:
        print(f"passes now, to be taken out of {os.path.relpath(path, REPOSITORY)}: {name}")
    for name in gone:
        print(f"not run, to be taken out of {os.path.relpath(path, REPOSITORY)}: {name}")
    count = {what: sum(outcome == what for outcome in outcomes.values())
             for what in (PASSED, FAILED, SKIPPED)}
    print(f"{count[PASSED]} passed, {count[FAILED]} differ ({count[FAILED] - len(new)} as expected), "
          f"{count[SKIPPED]} skipped by the suite")
    return not (new or over or gone) and count[PASSED] > 0
