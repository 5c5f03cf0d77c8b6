"""What plays NCCL against the plugin finds a plugin that is wrong, and the fuzzer finds nothing in ours."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "nccl_plugin"
TABLES = "\n".join(
    f'struct lockstep_profiler ncclProfiler_v{version} = {{.name = "lockstep", .init.{init} = init_{init}, '
    ".start = start, .stop = stop, .record = record, .finalize = finalize};"
    for version, init in [(1, "v1"), (2, "v1"), (3, "v1"), (4, "v4"), (5, "v5"), (6, "v5"), (7, "v5")]
)
# A plugin that does nothing and says success; each macro makes it wrong in one way.
SILENT_PLUGIN = f"""
#include "abi.h"
#include <stddef.h>
#ifndef HANDLE
#define HANDLE NULL
#endif
#ifndef RESULT
#define RESULT 0
#endif
static int open_one(void **context, int *mask) {{ if (context) *context = (void *)1; if (mask) *mask = 0; return 0; }}
static int init_v1(void **c, int *m) {{ return open_one(c, m); }}
static int init_v4(void **c, int *m, const char *n, uint64_t i, int a, int b, int r, lockstep_log_fn *l)
{{ (void)n, (void)i, (void)a, (void)b, (void)r, (void)l; return open_one(c, m); }}
static int init_v5(void **c, uint64_t i, int *m, const char *n, int a, int b, int r, lockstep_log_fn *l)
{{ (void)n, (void)i, (void)a, (void)b, (void)r, (void)l; return open_one(c, m); }}
static int start(void *c, void **h, const void *d) {{ (void)c, (void)d; if (h) *h = HANDLE; return RESULT; }}
static int stop(void *h) {{ (void)h; return 0; }}
static int record(void *h, int s, const void *a) {{ (void)h, (void)s, (void)a; return 0; }}
static int finalize(void *c) {{ (void)c; return 0; }}
void lockstep_replay_clock(const uint64_t *now, uint64_t offset);
void lockstep_replay_clock(const uint64_t *now, uint64_t offset) {{ (void)now, (void)offset; }}
{TABLES}
"""


@pytest.fixture(scope="module")
def players(built: Path) -> Path:
    """Build driver and fuzzer beside the plugin, as fast as it goes; return their folder."""
    make(built, "CFLAGS=-O0", *(str(built / name) for name in ("driver", "fuzz")))
    return built


def make(build: Path, *targets: str) -> None:
    done = subprocess.run(
        ["make", "--silent", "-j2", "-C", str(PLUGIN), f"BUILD={build}", *targets], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def build_wrong_plugin(folder: Path, *macros: str) -> Path:
    source, library = folder / "wrong.c", folder / "libwrong.so"
    source.write_text(SILENT_PLUGIN)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{PLUGIN}", *macros, str(source), "-o", str(library)], check=True)
    return library


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_our_plugin_passes_the_scenarios_that_are_asked_for(players: Path) -> None:
    done = run(players / "driver", players / "liblockstep-nccl.so", "tables")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "7 of 7 scenarios passed"
    done = run(players / "driver", players / "liblockstep-nccl.so", "what nobody plays")
    assert (done.returncode, done.stdout) == (1, "0 of 0 scenarios passed\n")
    for player in ("driver", "fuzz"):
        done = run(players / player)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")


def test_plugin_that_is_wrong_fails_with_what_does_not_hold_and_so_does_what_is_none_or_makes_no_file(
    players: Path, tmp_path: Path
) -> None:
    (tmp_path / "none.so").write_text("not a library")
    done = run(players / "driver", tmp_path / "none.so", "tables")
    assert (done.returncode, "0 of 7 scenarios passed" in done.stdout) == (1, True)
    for macros, scenario, complaint in (
        (["-DRESULT=3"], "arguments are missing", "is 3 (0x3), not 0 (0x0)"),
        (["-DHANDLE=*h"], "arguments are missing", "does not hold: handle == NULL"),
        ([], "an all-reduce on NCCL's threads", "0 of 7 scenarios passed"),
    ):
        library = build_wrong_plugin(tmp_path, *macros)
        done = run(players / "driver", library, scenario)
        assert (done.returncode, complaint in done.stdout) == (1, True)
    assert run(players / "fuzz", library, "1", "1").returncode == 1


@pytest.mark.slow
@pytest.mark.long  # `make check-c` fuzzes for five seconds, from the same seed each time
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_fuzzer_finds_nothing(sanitizer: str, tmp_path: Path) -> None:
    if missing := [tool for tool in ("make", "cc") if shutil.which(tool) is None]:
        pytest.skip(f"playing NCCL against the plugin needs {', '.join(missing)}")
    seed = str(random.SystemRandom().randrange(1 << 32))
    folder = tmp_path / sanitizer
    make(tmp_path, *(str(folder / name) for name in ("liblockstep-nccl.so", "fuzz")))

    done = run(folder / "fuzz", folder / "liblockstep-nccl.so", "60", seed, TSAN_OPTIONS="halt_on_error=1")

    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"
    assert f"with seed {seed}" in done.stdout
