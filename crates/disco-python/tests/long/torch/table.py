"""Prints ``torch_tests.toml`` anew, of what ``suite.py gloo`` and ``suite.py disco`` have printed:

    python suite.py gloo > gloo.json; python suite.py disco > disco.json
    python table.py gloo.json disco.json > ../../torch_tests.toml

The reasons for which tests do not pass stay; a test without one has the end of its error.
"""

import json
import sys
import tomllib
from pathlib import Path

from checks import Checks

TABLE = Path(__file__).parents[2] / "torch_tests.toml"
known = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
gloo, disco = (json.loads(Path(path).read_text().splitlines()[-1]) for path in sys.argv[1:])
print(
    "# Torch's tests with the back end `disco`: those that gloo passes without a GPU, in one run.\n"
    "# `table.py` writes this file, and `docs/torch-tests.md` has it."
)
for of, is_check in (("distributed_test", False), ("checks", True)):
    counted = [name for name, error in gloo.items() if not error]
    counted = [name for name in counted if hasattr(Checks, name) == is_check]
    why = {f"test_{name}": why for why, names in known.get(of, {}).items() for name in names}
    rows = {}
    for name in counted:
        reason = why.get(name, disco[name].splitlines()[-1]) if disco[name] else "passed"
        rows.setdefault(reason, []).append(name.removeprefix("test_"))
    print(f"\n[{of}]")
    for reason in sorted(rows, key=lambda reason: reason != "passed"):
        print(f"{json.dumps(reason)} = [")
        print("".join(f'    "{name}",\n' for name in rows[reason]) + "]")
