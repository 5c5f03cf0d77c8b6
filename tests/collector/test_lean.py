"""An agent does not load what it has no use for, whoever has installed it."""

import subprocess
import sys

PROGRAM = """
from collector.agent import leave_out_pandas
leave_out_pandas()
import sys, pyarrow as pa
assert pa.array([1, None]).null_count == 1
assert pa.table({"a": ["x"]}).num_rows == 1
print("pandas" in sys.modules)
"""


def test_arrow_works_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
