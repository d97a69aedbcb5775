"""docker-compose.yml and the Dockerfile, compared with the settings, the commands and the habits of a careful operator."""

import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from uploader import cli
from uploader.settings import Settings, variable_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

STORES = ("mysql", "valkey")
OURS = ("migrate", "api", "worker")
LONG_RUNNING = ("mysql", "valkey", "api", "worker")

_SECRET_SETTINGS = {variable_of(setting) for setting in fields(Settings) if setting.metadata["secret"]}


def arguments_of(service: str) -> list[str]:
    """The command of a service as a list."""
    command = SERVICES[service]["command"]
    return shlex.split(command) if isinstance(command, str) else command


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that arguments lead to in the CLI, and its parameters. Raises click.UsageError for what it refuses."""
    command: click.Command = cli.main
    path, rest = [], arguments
    while isinstance(command, click.Group):
        found = cli.commands_of(command).get(rest[0])
        assert found is not None, f"there is no command {rest[0]!r}"
        path.append(rest[0])
        command, rest = found, rest[1:]
    context = command.make_context(path[-1], rest)
    return " ".join(path), context.params


def test_it_runs_the_migration_the_api_a_worker_and_both_stores_pinned_and_durable() -> None:
    assert set(SERVICES) == {*STORES, *OURS}
    assert SERVICES["mysql"]["image"] == "mysql:9.7"
    assert re.fullmatch(r"valkey/valkey:\d+(\.\d+)*", SERVICES["valkey"]["image"])
    program, *arguments = arguments_of("valkey")
    assert program == "valkey-server"
    durable = {"--appendonly": "yes", "--appendfsync": "everysec", "--save": "", "--maxmemory-policy": "noeviction"}
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == durable


@pytest.mark.parametrize(
    ("service", "command", "parameters"),
    [
        ("migrate", "db upgrade", {}),
        ("api", "serve", {"host": "0.0.0.0", "port": None, "workers": None, "jobs": False}),
        ("worker", "work", {"listen": "127.0.0.1:8001"}),
    ],
)
def test_each_command_is_one_of_the_command_line(service: str, command: str, parameters: dict[str, Any]) -> None:
    program, *arguments = arguments_of(service)
    assert program == "uploader"
    assert parsed(arguments) == (command, parameters)


@pytest.mark.parametrize("service", OURS)
def test_every_setting_is_known_and_has_a_good_value(service: str) -> None:
    environment: dict[str, str] = SERVICES[service]["environment"]
    assert all(isinstance(value, str) for value in environment.values())
    plain = {name: value for name, value in environment.items() if not name.endswith("_FILE")}
    assert all(name.startswith("UPLOADER_") for name in environment)
    assert {name.removesuffix("_FILE") for name in environment if name.endswith("_FILE")} <= _SECRET_SETTINGS
    settings = Settings.load(plain)
    assert settings.redis_url is not None
    assert "UPLOADER_DATABASE_URL_FILE" in environment
    known = {variable_of(setting) for setting in fields(Settings)} | {f"{name}_FILE" for name in _SECRET_SETTINGS}
    assert set(re.findall(r"\bUPLOADER_\w+", TEXT)) <= known, "in a comment"


def test_there_is_no_secret_in_the_file() -> None:
    assert set(COMPOSE["secrets"]) == {"mysql_root_password", "mysql_password", "database_url", "uploader_secret"}
    for secret in COMPOSE["secrets"].values():
        assert set(secret) == {"file"}
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_FILE"):
                path = Path(value)
                assert path.parent == Path("/run/secrets")
                assert path.name in service["secrets"], f"{name} is not given the secret {path.name}"
            else:
                assert not re.search("PASSWORD|SECRET|TOKEN", variable)
                assert not re.search(r"://[^/\s]*@", value), f"{variable} holds a password"
    assert not re.search(r"://[^:/\s]+:(?!%s@)[^@\s]+@", TEXT), "a URL holds a password"


def test_whatever_the_image_copies_is_in_the_repository_and_nothing_else_is_sent_to_its_build() -> None:
    lines = [line.split() for line in (ROOT / ".ci/Dockerfile").read_text().splitlines()]
    copied = [source for line in lines if line[:1] == ["COPY"] and "--from" not in line[1] for source in line[1:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert (ROOT / ".dockerignore").read_text().split() == [
        "*",
        *sorted(f"!{source}" for source in copied),
        "**/__pycache__",
        "uploader/lanes/liblanes.so.1",
    ]


def test_the_comments_say_how_to_make_every_secret_and_the_readme_says_the_same() -> None:
    comments = [line.removeprefix("#   ") for line in TEXT.splitlines() if line.startswith("#   ")]
    made = "\n".join(comments)
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].removeprefix("secrets/") in made
    assert made in (ROOT / "docs/installation.md").read_text()


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_whatever_runs_long_has_a_healthcheck_and_is_started_again(service: str) -> None:
    check = SERVICES[service]["healthcheck"]
    assert (check["test"][0], len(check["test"]) > 1) == ("CMD", True)
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert SERVICES[service]["restart"] == "unless-stopped"


def test_the_api_and_the_worker_are_asked_on_their_ports_whether_they_are_ready() -> None:
    for service, place in (("api", f"127.0.0.1:{Settings().port}"), ("worker", arguments_of("worker")[-1])):
        probe = SERVICES[service]["healthcheck"]["test"][-1]
        compile(probe, "probe", "exec")
        assert f"http://{place}/readyz" in probe
    assert SERVICES["api"]["ports"] == [f"127.0.0.1:8000:{Settings().port}"]
    assert int(SERVICES["api"]["stop_grace_period"].removesuffix("s")) > Settings().shutdown_timeout_seconds


def test_the_migration_runs_once_and_the_others_wait_for_its_success() -> None:
    assert SERVICES["migrate"]["restart"] == "no"
    assert "healthcheck" not in SERVICES["migrate"]
    healthy, done = {"condition": "service_healthy"}, {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"] == {"mysql": healthy}
    for service in ("api", "worker"):
        assert SERVICES[service]["depends_on"] == {"mysql": healthy, "valkey": healthy, "migrate": done}


def test_everything_that_lasts_is_in_a_named_volume_and_the_api_and_the_worker_share_theirs() -> None:
    used = {}
    for name in LONG_RUNNING:
        for volume in SERVICES[name]["volumes"]:
            source, _, target = volume.partition(":")
            assert source in COMPOSE["volumes"], f"{name} mounts {source}, which is no named volume"
            used[name] = (source, target)
    assert used["mysql"] == ("mysql", "/var/lib/mysql")
    assert used["valkey"] == ("valkey", "/data")
    assert used["api"] == used["worker"] == ("data", SERVICES["api"]["environment"]["UPLOADER_DATA"])
    assert {source for source, _ in used.values()} == set(COMPOSE["volumes"])


def test_the_stores_can_be_reached_from_the_network_of_the_servers_only() -> None:
    assert COMPOSE["networks"] == {"stores": {"internal": True}}
    for service in STORES:
        assert SERVICES[service]["networks"] == ["stores"]
        assert "ports" not in SERVICES[service]
    assert all("stores" in SERVICES[service]["networks"] for service in OURS)


@pytest.mark.parametrize("service", OURS)
def test_it_runs_the_image_as_the_user_of_the_image_with_nothing_that_he_does_not_need(service: str) -> None:
    """`tests/image` carries out the Dockerfile."""
    assert SERVICES[service]["build"] == {"context": ".", "dockerfile": ".ci/Dockerfile"}
    assert "user" not in SERVICES[service]
    assert SERVICES[service]["cap_drop"] == ["ALL"]
    assert SERVICES[service]["read_only"] is True
    dockerfile = (ROOT / ".ci/Dockerfile").read_text()
    assert f"UPLOADER_DATA={SERVICES[service]['environment']['UPLOADER_DATA']}\n" in dockerfile
    assert SERVICES["api"]["healthcheck"]["test"][-1] in dockerfile


def test_the_libraries_of_the_image_are_those_that_the_project_asks_for() -> None:
    """`.ci/release --constraints` writes them anew."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "docs/constraints.txt").read_text(), flags=re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in ("server", "s3", "kafka"):
        asked += project["optional-dependencies"][extra]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    tools = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "docs/build-constraints.txt").read_text(), flags=re.MULTILINE)
    )
    for tool in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]):
        assert tool.specifier.contains(tools[canonicalize_name(tool.name)]), tool


def test_the_image_installs_nothing_but_what_is_pinned_by_its_hash() -> None:
    dockerfile = re.sub(r"\\\n\s*", "", (ROOT / ".ci/Dockerfile").read_text())
    commands = re.findall(r"\bpip\b.*? (?:install|wheel) [^&\n]*", dockerfile)
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command, command
        assert "/src" not in command.split() or "--no-build-isolation" in command, command
