"""Runs the tests of rdma-core's tests/ folder and writes what came of each into a file. Called by
scripts/test-pyverbs, in a process that has the drop-in:

    run_pyverbs.py SOURCES OUTCOMES [FILTER]...
"""
import importlib.util
import os
import re
import sys
import unittest

sources, outcomes, *filters = sys.argv[1:]
tests_folder = os.path.join(os.path.realpath(sources), "tests")
if not os.path.exists(os.path.join(tests_folder, "args_parser.py")):
    sys.exit(f"{sources} has no tests/args_parser.py: it is no folder with rdma-core's sources")
sys.path.insert(0, tests_folder)
from args_parser import parser  # noqa: E402

sys.argv[1:] = ["--dev", "soft0", "-v"]
parser.parse_args()


class Result(unittest.TextTestResult):
    """Writes each outcome at once: a test may end the process."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.told = open(outcomes, "w", encoding="utf-8", buffering=1)

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"

    def stopTest(self, test):
        super().stopTest(test)
        self.told.write(f"{test.id()} {self.outcome}\n")

    def addError(self, test, error):
        super().addError(test, error)
        self.outcome = "failed"

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcome = "failed"

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.outcome = "failed"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"


# As tests/run_tests.py does: the folder is a package, whose load_tests collects its modules.
spec = importlib.util.spec_from_file_location("tests", os.path.join(tests_folder, "__init__.py"),
                                              submodule_search_locations=[tests_folder])
tests = importlib.util.module_from_spec(spec)
sys.modules["tests"] = tests
spec.loader.exec_module(tests)


def all_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_of(test)
        elif not filters or any(re.search(wanted, test.id()) for wanted in filters):
            yield test


unittest.TextTestRunner(verbosity=2, resultclass=Result).run(
    unittest.TestSuite(all_of(unittest.defaultTestLoader.loadTestsFromModule(tests))))
