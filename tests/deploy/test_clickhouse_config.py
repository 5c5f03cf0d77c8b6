"""deploy/clickhouse agrees with the compose file, with the secrets and with what Lockstep asks for."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from tests.conftest import REPO
from tests.deploy.clickhouse_config import SERVER_FILE, USERS_FILE, read_users
from tests.deploy.compose_file import load_compose

COMPOSE = load_compose()
SERVICE = COMPOSE.services["clickhouse"]
GIB = 1 << 30


def test_the_services_log_in_as_a_user_that_owns_their_database() -> None:
    urls = {s.environment["LOCKSTEP_STORE_URL"] for s in COMPOSE.ours if "LOCKSTEP_STORE_URL" in s.environment}
    (url,) = map(urlsplit, urls)

    assert f"GRANT ALL ON {url.path.strip('/')}.*" in read_users()[str(url.username)].grants


def test_passwords_are_read_from_the_mounted_secret_and_never_stand_in_the_file() -> None:
    assert ElementTree.parse(USERS_FILE).findtext("include_from") in SERVICE.secrets
    assert not re.search(r"<password>|[0-9a-f]{64}", USERS_FILE.read_text())


def test_backups_go_to_the_data_volume() -> None:
    allowed = ElementTree.parse(SERVER_FILE).findtext("backups/allowed_path")

    assert str(allowed).startswith(tuple(mount.target + "/" for mount in SERVICE.mounts if mount.is_volume))
    assert str(allowed).endswith("/"), "ClickHouse compares it as a prefix"


def test_one_query_leaves_memory_for_another() -> None:
    share = float(str(ElementTree.parse(SERVER_FILE).findtext("max_server_memory_usage_to_ram_ratio")))
    server_gib = share * int(str(SERVICE.mem_limit).removesuffix("g"))

    for user in read_users().values():
        assert int(user.profile["max_memory_usage"]) / GIB < server_gib


def test_the_server_starts_after_orphaned_tokens_were_forgotten_and_also_when_that_fails(tmp_path: Path) -> None:
    (script,) = (mount.source for mount in SERVICE.mounts if mount.target == "/etc/lockstep/forget_orphans.sh")
    logs = tmp_path / "store/abc/abcdef/deduplication_logs"
    logs.mkdir(parents=True)
    log = logs / "deduplication_log_1.txt"
    log.write_text("1\t19675_1_1_0\ttoken\n")
    (tmp_path / "entrypoint").write_text("#!/bin/sh\necho started")
    (tmp_path / "entrypoint").chmod(0o755)

    *shell, line = SERVICE.entrypoint
    line = line.replace("/var/lib/clickhouse", str(tmp_path)).replace("/entrypoint.sh", str(tmp_path / "entrypoint"))
    for path in (REPO / script, "/nonexistent"):
        words = [*shell, line.replace("/etc/lockstep/forget_orphans.sh", str(path))]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "started\n"

    assert log.read_text().splitlines() == ["1\t19675_1_1_0\ttoken", "2\t19675_1_1_0\ttoken"]
