"""What all tests share: the golden flag, skips that cannot go unseen, and the markers' meaning."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.tiers import may_hold

# Machines are shared: no test fails for being slow. CI draws the same examples each time, so that a change lands or
# not for what it changes; everybody else's runs go on looking for new ones, and `make long-test` for many.
settings.register_profile(
    "lockstep",
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("LOCKSTEP_CI")),
)
settings.register_profile("many", settings.get_profile("lockstep"), max_examples=500)
settings.load_profile("lockstep")

pytest_plugins = [f"tests.fixtures.{name}" for name in ("control", "pickles", "plugin", "postgres", "stores")]

REPO = Path(__file__).resolve().parent.parent


MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30  # a test holds up to 0.8 GiB, 12 ring files of 64 MiB, and there are two workers


def pytest_configure(config: pytest.Config) -> None:
    """Have fast tests write into memory: 238 of control databases and gateways took 32 s so, and 48 s on a disk."""
    if config.option.markexpr == "not slow" and MEMORY.is_dir() and is_roomy(os.statvfs(MEMORY)):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def is_roomy(found: os.statvfs_result) -> bool:
    """Return whether tests may write here and run what they build, as containers often do not allow."""
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM_BYTES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; read the diff in review")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets what is logged; the next test has it as before."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_tests and not may_hold(collection_path.read_text(), config.option.markexpr) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root to include it")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say last what was not run and why, so that nothing is skipped silently."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run here, and why")
    for report in skipped:
        terminalreporter.line(f"{report.nodeid}: {_reason(report)}")


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def is_excused(reason: str, has_public_data: bool) -> bool:
    """Return whether CI may leave a test out: only third-party data, which no clone brings, is an excuse."""
    return "LOCKSTEP_PUBLIC_DATA" in reason and not has_public_data


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn any skip into a failure in CI, where everything that tests need is installed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    has_data = "LOCKSTEP_PUBLIC_DATA" in os.environ
    missing = [report for report in skipped if not is_excused(_reason(report), has_data)]
    if os.environ.get("LOCKSTEP_CI") and missing and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
