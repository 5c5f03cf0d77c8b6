"""An agent does not load what it has no use for, whoever has installed it."""

import subprocess
import sys

from tests.conftest import REPO
from tests.waiting import LIMIT_S

PROGRAM = """
from collector.lean import leave_out_pandas
leave_out_pandas()
import sys, pyarrow as pa
assert pa.array([1, None]).null_count == 1
assert pa.table({"a": ["x"]}).num_rows == 1
import collector.registry
from collector.probes.packets import Flow, Shot, build_packets
assert not [name for name in sys.modules if name.partition(".")[0] in ("pandas", "scapy")]
build_packets([Shot(Flow("eth0", "h1", "eth0", "tcp", 1, 2), "10.0.0.1", "10.0.0.2", 1, 1)])
assert "scapy" in sys.modules
assert "pandas" not in sys.modules
"""


def test_arrow_works_without_pandas_and_scapy_is_loaded_by_the_first_packet_and_not_before() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPO, check=True, timeout=LIMIT_S)
