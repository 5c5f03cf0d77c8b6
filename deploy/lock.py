"""Writes deploy/locks: what each role and the build of our wheel consist of, with the hashes that pip checks.

`make lock` asks the package index for every file of a pinned version that Linux on x86_64 or aarch64 may be given.
What an index shows later under the same name is refused: `pip install --require-hashes --requirement FILE`.
"""

import html
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.request import urlopen

from packaging.utils import canonicalize_name, parse_wheel_filename
from pip._internal.models.index import PyPI  # no other place says which index pip asks
from sbom import PROJECT, find_installed

HERE = Path(__file__).resolve().parent
LOCKS = {  # by file: what is asked for, and with which extras
    "api,analyzer,planner": (PROJECT, ("api", "analyzer", "planner")),
    "collector": (PROJECT, ("collector",)),
    "build": ("hatchling", ()),
}
_LINK = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
_PYTHONS = ("cp311", "cp312", "cp313")


def fits(file: str, version: str) -> bool:
    """Return whether a file is a wheel of this version for Linux and a Python that we run on."""
    if not (file.endswith(".whl") and f"-{version}-" in file):
        return False
    return any(
        (tag.interpreter in _PYTHONS or tag.abi in ("abi3", "none"))
        and (tag.platform == "any" or re.fullmatch(r"manylinux.*_(x86_64|aarch64)", tag.platform) is not None)
        for tag in parse_wheel_filename(file)[3]
    )


def find_hashes(name: str, version: str) -> list[str]:
    """Return the hashes of what the index has of a version, in order."""
    with urlopen(f"{PyPI.simple_url}/{name}/") as page:  # noqa: S310  # https
        links = _LINK.findall(html.unescape(page.read().decode()))
    found = sorted(digest for file, digest in links if fits(file, version))
    if not found:
        raise SystemExit(f"{PyPI.simple_url} has no wheel of {name} {version}")
    return found


def write_lock(names: Iterable[str], pins: dict[str, str]) -> Iterator[str]:
    for name in sorted(set(names) - {PROJECT}):
        hashes = (f"--hash=sha256:{digest}" for digest in find_hashes(name, pins[name]))
        yield " \\\n    ".join([f"{name}=={pins[name]}", *hashes])


def main() -> None:
    lines = (HERE.parent / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for file, (name, extras) in LOCKS.items():
        locked = write_lock(find_installed(name, extras), pins)
        (HERE / "locks" / f"{file}.txt").write_text("".join(f"{each}\n" for each in locked))
        sys.stdout.write(f"deploy/locks/{file}.txt\n")


if __name__ == "__main__":
    main()
