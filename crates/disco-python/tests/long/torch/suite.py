"""Torch's own tests of back ends, with a back end and some tests that the arguments name.

Prints a JSON object: the reason for which a test did not pass, and "" for one that passed.
"""

import json
import os
import sys
import unittest

BACKEND, *NAMES = sys.argv[1:]
os.environ |= {"BACKEND": BACKEND, "WORLD_SIZE": "4", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60"}

import disco.torch  # noqa: E402, F401
from torch import multiprocessing  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402


def unchanged(*_):
    return lambda test: test


# Conditions on the names of back ends: whether gloo passes a test decides if it counts.
for module in common_utils, common_distributed:
    module.skip_but_pass_in_sandcastle = module.skip_but_pass_in_sandcastle_if = unchanged
# The groups of these tests have ranks 1 and 2.
common_distributed.skip_if_small_worldsize = lambda test: test

from checks import Checks  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402


class Suite(
    Checks, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    def setUp(self):
        super().setUp()
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
        # Each rank has what this process has imported.
        self._start_processes(multiprocessing.get_context("fork").Process)

    def run_test(self, name, pipe):
        if name.startswith("test_accumulate_gradients"):
            # It makes its model on the host for back ends of these names.
            distributed_test.BACKEND = "gloo"
        super().run_test(name, pipe)


class Result(unittest.TestResult):
    """The error of each test by its name; none of a test that has passed."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def startTest(self, test):
        super().startTest(test)
        self.rows[test._testMethodName] = ""

    def addSkip(self, test, reason):
        self.rows[test._testMethodName] = f"skipped: {reason}"

    def addError(self, test, error):
        self.rows[test._testMethodName] = str(error[1]).strip()

    addFailure = addError


if __name__ == "__main__":
    names = NAMES or unittest.TestLoader().getTestCaseNames(Suite)
    result = Result()
    unittest.TestSuite(map(Suite, names)).run(result)
    print(json.dumps(result.rows))
