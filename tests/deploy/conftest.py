"""What tests of the deployment share: secrets as a person would make them."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPO


def make_secrets(directory: Path) -> Path:
    subprocess.run([REPO / "deploy/make-secrets", directory], check=True)
    return directory


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return make_secrets(tmp_path / "secrets")
