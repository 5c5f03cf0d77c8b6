"""What an installation consists of, as CycloneDX 1.6: `python deploy/sbom.py api,analyzer > sbom.cdx.json`.

It tells what is installed here for these roles, directly or not; equal installations give equal files.
"""

import json
import sys
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "lockstep"


def find_installed(name: str, extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return a distribution and all that it brings with these extras, by name; what is not installed is left out."""
    found: dict[str, metadata.Distribution] = {}
    waiting, seen = [(name, frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while waiting:
        asked = waiting.pop()
        try:
            distribution = metadata.distribution(asked[0])
        except metadata.PackageNotFoundError:
            continue
        seen.add(asked)
        found[asked[0]] = distribution
        needed = [needs for line in distribution.requires or () if is_asked_for(needs := Requirement(line), asked[1])]
        following = [(canonicalize_name(needs.name), frozenset(needs.extras)) for needs in needed]
        waiting += [each for each in following if each not in seen]
    return found


def is_asked_for(needs: Requirement, extras: Iterable[str]) -> bool:
    return needs.marker is None or any(needs.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def describe(name: str, distribution: metadata.Distribution) -> dict[str, object]:
    """Return a component; its license is what its authors wrote, in one line."""
    told = distribution.metadata
    license_name = next((told[name] for name in ("License-Expression", "License") if name in told), "") or "unknown"
    return {
        "type": "library",
        "name": name,
        "version": distribution.version,
        "purl": f"pkg:pypi/{name}@{distribution.version}",
        "licenses": [{"license": {"name": license_name.splitlines()[0][:100]}}],
    }


def make_document(extras: Iterable[str]) -> dict[str, object]:
    installed = find_installed(PROJECT, extras)
    main = describe(PROJECT, installed.pop(PROJECT)) | {"type": "application"}
    components = [describe(name, installed[name]) for name in sorted(installed)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(make_document(sys.argv[1].split(",")), indent=2) + "\n")
