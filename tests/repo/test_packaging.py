"""What is installed is whole, brings what it needs and no more, and is the same everywhere."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cli.main import COMMANDS
from tests.conftest import REPO
from tests.repo.files import PACKAGES, python_files, repository_files

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
THIS_FILE = Path(__file__).resolve()


def constraints() -> dict[str, str]:
    """Return the pinned version of each distribution."""
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def requirements_of(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what the project asks for with these extras, its own extras resolved."""
    asked = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, asked):
        if requirement.name == "lockstep":
            yield from requirements_of(requirement.extras)
        else:
            yield requirement


@lru_cache
def brought_by(*extras: str) -> frozenset[str]:
    """Return every distribution that an installation with these extras has here, directly or not."""
    found: set[str] = set()
    waiting = list(requirements_of(extras))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        environments = [{"extra": extra} for extra in (requirement.extras or {""})]
        try:
            needed = list(map(Requirement, metadata.requires(name) or []))
        except metadata.PackageNotFoundError:
            continue  # for another platform
        waiting += [
            one
            for one in needed
            if canonicalize_name(one.name) not in found
            and (one.marker is None or any(one.marker.evaluate(environment) for environment in environments))
        ]
        found.add(name)
    return frozenset(found)


def test_vocabulary_alone_is_light() -> None:
    script = "import sys, lockstep; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True)
    unwanted = {*PACKAGES, "torch", "numpy", "fastapi", "pyarrow", "pydantic", "sqlalchemy"} - {"lockstep"}
    assert set(done.stdout.split()) & unwanted == set()
    assert "lockstep" in done.stdout.split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(REPO)], check=True)
    (file,) = folder.glob("lockstep-*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def test_wheel_has_every_file_of_every_package_the_command_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {str(path.relative_to(REPO)) for path in repository_files()}
    assert {name for name in ours if name.split("/")[0] in PACKAGES} - set(wheel.namelist()) == set()
    kinds = ("lockstep/store/schema/.*[.]sql", "simulator/scenarios/.*[.]toml", "api/templates/.*[.]html")
    for kind in (*kinds, *(f"{package}/py[.]typed" for package in PACKAGES)):
        assert [name for name in wheel.namelist() if re.fullmatch(kind, name)], kind
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    (file,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "lockstep = cli.main:run" in wheel.read(file).decode()


def test_everything_that_is_installed_for_us_is_pinned_as_it_is_installed() -> None:
    installed = {name: Version(metadata.version(name)).public for name in brought_by("dev")}
    assert len(installed) > 40
    pins = constraints()
    assert pins["torch"] == "2.13.0", "the release that the analyzer was measured with"
    assert {name: version for name, version in installed.items() if pins.get(name) != version} == {}


def test_pins_are_inside_of_what_the_project_asks_for() -> None:
    pins = constraints()
    asked = [requirement for extra in PROJECT["optional-dependencies"] for requirement in requirements_of([extra])]
    outside = [str(one) for one in asked if not one.specifier.contains(pins[canonicalize_name(one.name)])]
    assert outside == []


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


@pytest.fixture(scope="module")
def owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


# Imported where a site names the controller, or has a GPU; whoever lacks it is told which extra brings it.
BY_CHOICE = {"grpc", "kubernetes", "torch"}


def test_torch_comes_with_its_own_extras_alone() -> None:
    extras = PROJECT["optional-dependencies"].keys() - {"dev"}
    assert {extra for extra in extras if "torch" in brought_by(extra)} == {"analyzer-gpu", "training"}


def test_extra_that_a_command_names_brings_all_that_it_imports(
    imports: grimp.ImportGraph, owners: Mapping[str, list[str]]
) -> None:
    ours = {*PACKAGES, "benchmarks", "tests", *sys.stdlib_module_names, *BY_CHOICE}
    for command in {each.location: each for each in COMMANDS}.values():
        reached = imports.find_upstream_modules(command.module) | {command.module}
        foreign = {name.split(".")[0] for name in reached} - ours
        brought = brought_by(*command.extra.split(","))
        missing = {name for name in foreign if not brought & {canonicalize_name(owner) for owner in owners[name]}}
        assert missing == set(), f"lockstep {command.name} cannot run after pip install 'lockstep[{command.extra}]'"


def test_service_that_runs_for_months_brings_no_simulator(imports: grimp.ImportGraph) -> None:
    reached = imports.find_upstream_modules("cli.serve")
    assert "planner.paths.service" in reached
    assert {name for name in reached if name.startswith(("simulator", "collector"))} == set()


# Everybody brings their own mirror and their own home directory; both come from the environment.
MACHINES = r"/home/\w+/|/Users/\w+/|/root/(?!\.cache)|/work/|[A-Z]:\\Users\\"
REGISTRIES = (
    r"pypi\.org|pythonhosted\.org|docker\.io|ghcr\.io|quay\.io|nvcr\.io|gcr\.io|azurecr\.io|artifactory"
    r"|download\.pytorch\.org|\bregistry\.\w+\.\w+|index-url[ =]+https?:"
)


@pytest.mark.parametrize("pattern", [MACHINES, REGISTRIES], ids=["a path of a developer's machine", "a registry"])
def test_no_file_names(pattern: str) -> None:
    named = [
        f"{path.relative_to(REPO)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        if path != THIS_FILE and (text := _text_of(path)) is not None and re.search(pattern, text)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert named == []


def test_every_module_opens_with_a_sentence() -> None:
    files = python_files()
    assert len(files) > 100
    opening = re.compile(r'(#.*\n|\s)*+(r?"""\s*[^\s"]|\Z)')
    assert opening.match("# ruff\n\nx = 1") is None
    assert [str(path.relative_to(REPO)) for path in files if not opening.match(path.read_text("utf-8"))] == []


def _text_of(path: Path) -> str | None:
    """Return what a text file holds; None for anything else."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
