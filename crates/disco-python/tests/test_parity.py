"""What Rust has and Python lacks: nothing without a reason. The table is `counterparts.toml`."""

import re
import tomllib
from pathlib import Path

import disco

TESTS = Path(__file__).parent
ROOT = TESTS.parents[2]
TABLE = tomllib.loads((TESTS / "counterparts.toml").read_text())
GUIDE = ROOT / "docs/python.md"


def public_names(path):
    """The public methods and fields of a file, without those of its tests."""
    text = (ROOT / path).read_text().split("#[cfg(test)]")[0]
    names = set(re.findall(r"^    pub (?:async |const )?fn (\w+)", text, re.MULTILINE))
    names |= set(re.findall(r"^    pub (\w+): ", text, re.MULTILINE))
    for trait in re.findall(r"^pub trait \w+.*?^}", text, re.MULTILINE | re.DOTALL):
        # What stands above its sessions, and not what they build on.
        if "pub trait SharedStore" not in trait:
            names |= set(re.findall(r"^    (?:async )?fn (\w+)", trait, re.MULTILINE))
    return names | set(re.findall(r"^    (\w+), start_\w+\(", text, re.MULTILINE))


def exists(name):
    kind, _, member = name.partition(".")
    found = getattr(disco, kind)
    if kind == "Options":
        return member in found.__annotations__
    return not member or hasattr(found, member)


def test_each_method_of_rust_has_a_counterpart_or_a_reason():
    for of, table in TABLE.items():
        assert public_names(of.split()[1]) == table.keys(), of


def test_each_counterpart_exists():
    named = [name for table in TABLE.values() for name in table.values() if name[0] != "-"]
    assert [name for name in named if not exists(name)] == []


def test_the_guide_has_the_methods_that_have_no_counterpart():
    reasons = {}
    for of, table in TABLE.items():
        for name, why in table.items():
            if why[0] == "-":
                reasons.setdefault(why[1:], []).append(f"`{of.split()[0]}::{name}`")
    expected = [f"| {', '.join(names)} | {why} |" for why, names in reasons.items()]
    rows = GUIDE.read_text().split("| of Rust only | because |\n|---|---|\n")[1].split("\n\n")[0]
    assert rows.splitlines() == expected, "\n".join(expected)
