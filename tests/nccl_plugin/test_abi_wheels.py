"""The golden layouts are what NVIDIA's binaries say: read again from the wheels on PyPI, they come out the same."""

import zipfile
from pathlib import Path

import pytest

from importers.traces.nccl_abi import RELEASES, facts_file
from lockstep.errors import NotPresent
from nccl_plugin.abi import read_dwarf
from nccl_plugin.abi.read_dwarf import LIBRARY, as_text, downloaded_library, read_release


@pytest.mark.slow
@pytest.mark.long  # what NVIDIA has published does not change with our code
@pytest.mark.parametrize("release", RELEASES)
def test_the_binary_on_pypi_says_what_the_golden_data_says(release: str) -> None:
    """Download the wheel (200 to 300 MB), read its debug information, compare; without PyPI there is no answer."""
    try:
        with downloaded_library(release) as library:
            read = as_text(read_release(library, release))
    except NotPresent as away:
        pytest.skip(f"comparing the golden layouts with NVIDIA's binaries needs PyPI: {away}")

    assert read == facts_file(release).read_text(encoding="utf-8")


def test_only_the_library_is_kept_and_only_for_the_block_and_a_wheel_that_cannot_be_had_is_said_in_pips_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(read_dwarf, "_download", small_wheel)
        with downloaded_library("2.32.3") as library:
            folder = Path(str(library).removesuffix(LIBRARY))
            assert library.read_bytes() == b"ELF"
            assert [file for file in folder.rglob("*") if file.is_file()] == [library]
        assert not folder.exists()
    pip = ("sh", "-c", 'echo searching >&2; echo "ERROR: No matching distribution found for $3" >&2; exit 1', "pip")
    monkeypatch.setattr(read_dwarf, "PIP_DOWNLOAD", pip)
    twice = "; ".join(f"ERROR: No matching distribution found for nvidia-nccl-cu{cuda}==2.32.3" for cuda in (13, 12))
    with pytest.raises(NotPresent, match=f"cannot download the wheel of NCCL 2.32.3: {twice}$"):
        downloaded_library("2.32.3").__enter__()


def small_wheel(release: str, folder: Path) -> Path:
    """Stand in for pip: a wheel whose library is three bytes long."""
    wheel = folder / f"nvidia_nccl-{release}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(LIBRARY, b"ELF")
        archive.writestr("nvidia/nccl/include/nccl.h", b"not kept")
    return wheel
