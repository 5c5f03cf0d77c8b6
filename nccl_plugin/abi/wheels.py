"""Where NVIDIA's binaries come from: the wheels on PyPI, of which only libnccl.so.2 is kept, and only for a while."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import NotPresent

PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")  # the same NCCL, built with one CUDA or the other
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
    "--no-cache-dir",  # else a gigabyte stays behind that nobody else needs
)


@contextmanager
def downloaded_library(release: str) -> Iterator[Path]:
    """Give the release's libnccl.so.2, for this machine's architecture, until the block ends; some 600 MB of disk.

    Raises NotPresent when no wheel can be had, be it that PyPI is out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-nccl-") as folder:
        wheel = _download(release, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(LIBRARY, folder))
        wheel.unlink()
        yield library


def _download(release: str, folder: Path) -> Path:
    complaints = []
    for package in PACKAGES:
        done = subprocess.run(
            [*PIP_DOWNLOAD, "--dest", str(folder), f"{package}=={release}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return next(folder.glob("*.whl"))
        complaints += done.stderr.strip().splitlines()[-1:]
    raise NotPresent(f"pip cannot download the wheel of NCCL {release}: {'; '.join(complaints)}")
