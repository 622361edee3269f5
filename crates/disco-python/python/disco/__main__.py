"""``python -m disco``: the version, the backends of this machine, and a check of a session."""

from __future__ import annotations

import sys

import disco


@disco.function
def _sum(ctx: disco.Context) -> int:
    return ctx.all_reduce(ctx.worker + 1)


def main() -> int:
    print(f"disco-runtime {disco.__version__}, Python {sys.version.split()[0]} ({sys.executable})")
    for row in disco.backends():
        what = (
            f"available    {row['version']} ({row['library']})"
            if row["available"]
            else f"unavailable  {row['reason']}"
        )
        print(f"{row['name']:<10} {what}")
    with disco.session(processes=2, backend="local") as session:
        found = _sum(session).get_all(timeout=30)
    if found != [3, 3]:
        print(f"a session of 2 processes: all_reduce of 1 and 2 has given {found}")
        return 1
    print("a session of 2 processes: works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
