"""deploy/make-secrets makes what the compose file wants, once, for nobody else on the machine to see."""

import hashlib
from pathlib import Path
from xml.etree import ElementTree

from tests.deploy.clickhouse_config import read_users
from tests.deploy.compose_file import load_compose
from tests.deploy.conftest import make_secrets


def test_every_secret_of_the_compose_file_is_made(secrets: Path) -> None:
    assert {file.name for file in secrets.iterdir()} == {Path(f).name for f in load_compose().secrets.values()}


def test_containers_can_read_the_files_and_other_users_cannot_reach_them(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in secrets.iterdir()} == {0o444}


def test_passwords_are_long_and_differ(secrets: Path) -> None:
    passwords = [file.read_text() for file in secrets.glob("*-password")]

    assert len(set(passwords)) == 3
    assert {len(password) for password in passwords} == {64}


def test_the_server_knows_the_hash_of_each_users_password(secrets: Path) -> None:
    hashes = {element.tag: element.text for element in ElementTree.parse(secrets / "clickhouse-hashes.xml").getroot()}
    users = read_users()

    def digest(name: str) -> str:
        return hashlib.sha256((secrets / name).read_bytes()).hexdigest()

    assert hashes == {
        users["lockstep"].hash_name: digest("store-password"),
        users["grafana"].hash_name: digest("grafana-store-password"),
    }


def test_a_second_run_changes_no_password(secrets: Path) -> None:
    before = {file.name: file.read_bytes() for file in secrets.iterdir()}

    make_secrets(secrets)

    assert {file.name: file.read_bytes() for file in secrets.iterdir()} == before


def test_a_deleted_password_is_made_anew_and_its_hash_with_it(secrets: Path) -> None:
    before = {file.name: file.read_bytes() for file in secrets.iterdir()}
    (secrets / "store-password").unlink()

    make_secrets(secrets)

    after = {file.name: file.read_bytes() for file in secrets.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"store-password", "clickhouse-hashes.xml"}
