"""A reader that races a real writer gets whole records, in order, each once; those it does not get are counted."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from collector.nccl.ringfile import open_ring
from lockstep import wire
from lockstep.wire import Table
from tests.collector.nccl.forging import Forged, Sizes
from tests.conftest import REPO
from tests.tiers import long_except

WRITER = Path(__file__).with_name("writer.c")
WRITTEN = 3_000_000


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("racing a writer needs a C compiler")
    program = tmp_path_factory.mktemp("writer") / "writer"
    include = f"-I{REPO / 'nccl_plugin'}"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", include, str(WRITER), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


@dataclass(frozen=True)
class Race:
    """How a race ended."""

    records: Table
    reads: int  # that gave records
    lost: int
    begun: int


def race(writer: Path, path: Path, threads: int, ring_records: int) -> Race:
    """Read from when the writer has overtaken us once, which waits for that, until it has ended, and twice more.

    What it had begun is waited for once.
    """
    Forged(Sizes(records=ring_records)).write(path)
    command = [str(writer), str(path), str(WRITTEN), str(threads), str(3 * ring_records)]
    pipe = subprocess.PIPE
    with open_ring(path) as ring, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "lapped\n"
        read = [ring.read_records()]
        process.stdin.close()
        while process.poll() is None:
            read.append(ring.read_records())
        read += [ring.read_records(), ring.read_records()]
        begun = int(process.stdout.read())
    whole = np.concatenate([records.sorted.steps for records in read])
    return Race(whole, sum(len(one.sorted.steps) > 0 for one in read), sum(one.lost for one in read), begun)


@pytest.mark.slow
@pytest.mark.parametrize("ring_records", [256, wire.RING_RECORDS])
@pytest.mark.parametrize("threads", long_except([4], [1, 4]))
def test_no_record_is_torn_or_twice_or_uncounted(
    writer: Path, tmp_path: Path, threads: int, ring_records: int
) -> None:
    result = race(writer, tmp_path / "a.ring", threads, ring_records)
    words = result.records.view("<u8").reshape(-1, 8)[:, 1:]
    number = words[:, 0]
    assert (words == number[:, None] * np.arange(1, 14, 2, dtype=np.uint64)).all(), "a torn record"
    assert (result.records["stamp"] == number // np.uint64(ring_records) + np.uint64(1)).all()
    assert (np.diff(number.astype(np.int64)) > 0).all(), "twice, or out of order"
    assert len(number) + result.lost == result.begun == WRITTEN
    assert result.reads > 1, "the reader was not there while the writer wrote"
    assert result.lost >= ring_records, "what was overwritten before it was read is not counted"
