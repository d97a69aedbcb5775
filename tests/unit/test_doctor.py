"""The rules of `uploader doctor` that look at nothing but what they are given: settings, versions, mounts, rules."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.consumer import SECRETS
from uploader.diagnosis import exposure
from uploader.diagnosis.doctor import diagnoses_of_mounts
from uploader.diagnosis.health import diagnoses_of_redis_settings
from uploader.domain.diagnosis import Subject, diagnoses_of_skew, error, note, warning, worst_first
from uploader.settings import Settings
from uploader.sinks.configuration import load_events
from uploader.storage.disk import parse_mounts
from uploader.storage.s3.probe import diagnoses_of_rules

SECRET = "kSJ2n0vY7oRq4xWc9zLb1mTfAeDhGpUi"
JWT = {"AUTH": "jwt", "JWT_SECRET": SECRET, "JWT_AUDIENCE": "files", "JWT_ISSUER": "us"}
SET = {"AUTH": "jwt", "JWT_JWKS": "https://issuer/keys", "JWT_AUDIENCE": "files", "JWT_ISSUER": "us"}
OUTSIDE = {"HOST": "0.0.0.0", "TRUSTED_PROXIES": "10.0.0.2"}
S3 = {"STORAGE": "s3://bucket/files"}

# Settings, and what is said of them.
EXPOSED: list[tuple[dict[str, str], list[str]]] = [
    ({}, []),
    ({"AUTH": "none"}, ["warning authentication"]),
    ({"CORS_ORIGINS": "https://a.example"}, []),
    ({"CORS_ORIGINS": "*"}, ["note authentication"]),
    (JWT, []),
    (JWT | {"JWT_SECRET": "ab" * 16}, ["error secrets"]),
    ({key: value for key, value in JWT.items() if key != "JWT_AUDIENCE"}, ["note authentication"]),
    (SET, []),
    (SET | {"JWT_JWKS": "http://127.0.0.1:1/keys"}, ["note authentication"]),
    (SET | {"JWT_JWKS": "http://issuer/keys"}, ["error authentication"]),
    ({key: value for key, value in SET.items() if key != "JWT_AUDIENCE"}, ["warning authentication"]),
    ({key: value for key, value in SET.items() if key != "JWT_ISSUER"}, ["note authentication"]),
    ({"LINK_SECRET": "a" * 32}, ["error secrets"]),
    ({"SECRET": "a" * 32}, ["error secrets"]),
    ({"INSTANT": "trust"}, ["warning instant"]),
    ({"HOST": "::1"}, []),
    ({"HOST": "localhost"}, []),
    ({"HOST": "0.0.0.0"}, ["warning transport"]),
    ({"HOST": "::", "TLS_CERTIFICATE": "a", "TLS_KEY": "b"}, []),
    (OUTSIDE, []),
    ({"METRICS": "open"}, []),
    (OUTSIDE | {"METRICS": "open"}, ["warning metrics"]),
    ({"METRICS": "open", "TRUSTED_PROXIES": "127.0.0.1"}, ["warning metrics"]),
    ({"TRUSTED_PROXIES": "127.0.0.1,10.0.0.0/8,203.0.114.0/24,2001:db8::/64"}, []),
    ({"TRUSTED_PROXIES": "104.16.0.0/13"}, ["warning proxies"]),
    ({"TRUSTED_PROXIES": "2606:4700::/32"}, ["warning proxies"]),
    ({"TRUSTED_PROXIES": "104.16.0.0/13", "TRUSTED_HEADER": "X-User"}, ["error proxies"]),
    ({"TRUSTED_PROXIES": "0.0.0.0/0"}, ["error proxies"]),
    ({"TRUSTED_PROXIES": "::/0"}, ["error proxies"]),
    ({"REDIS_URL": "redis://127.0.0.1:6379/0"}, []),
    ({"REDIS_URL": "unix:///run/redis.sock"}, []),
    ({"REDIS_URL": "redis://:hunter2@[::1]"}, []),
    ({"REDIS_URL": "rediss://:hunter2@cache"}, []),
    ({"REDIS_URL": "redis://cache"}, ["warning redis", "note redis"]),
    ({"REDIS_URL": "redis://:hunter2@10.0.0.5"}, ["note redis"]),
    ({"REDIS_URL": "redis://:hunter2@8.8.8.8"}, ["warning redis"]),
    ({"REDIS_URL": "redis+cluster://127.0.0.1,cache"}, ["warning redis", "note redis"]),
    ({"DATABASE_URL": "mysql+asyncmy://u:hunter2@127.0.0.1/files"}, []),
    ({"DATABASE_URL": "mysql+asyncmy://u:hunter2@localhost/files?unix_socket=/run/s"}, []),
    ({"DATABASE_URL": "mysql+asyncmy://u:hunter2@mysql/files"}, ["note database"]),
    ({"DATABASE_URL": "mysql+asyncmy://u:hunter2@8.8.8.8/files"}, ["warning database"]),
    (S3 | {"S3_ENDPOINT": "http://127.0.0.1:9000"}, []),
    (S3 | {"S3_ENDPOINT": "https://store"}, []),
    (S3 | {"S3_ENDPOINT": "http://store"}, ["warning bucket"]),
]


@pytest.mark.parametrize(("given", "told"), EXPOSED, ids=lambda each: str(each)[:60])
def test_what_settings_expose(given: dict[str, str], told: list[str]) -> None:
    settings = Settings.load({f"UPLOADER_{name}": value for name, value in given.items()})
    found = exposure.diagnoses_of(settings, load_events(None))
    assert [f"{each.level} {each.subject}" for each in found] == told
    assert not re.search(f"{SECRET}|hunter2", " ".join(map(str, found)))


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ('type = "webhook"\nurl = "https://app/hook"\nsecret_file = "s"', 0),
        ('type = "webhook"\nurl = "http://127.0.0.1/hook"\nsecret_file = "s"', 0),
        ('type = "webhook"\nurl = "http://app/hook"\nsecret_file = "s"', 1),
        ('type = "redis"', 0),
        ('type = "redis"\nurl = "redis://cache"', 2),
        ('type = "kafka"\nservers = "localhost:9092"\ntopic = "t"', 0),
        ('type = "kafka"\nservers = "broker:9092"\ntopic = "t"', 1),
        ('type = "kafka"\nservers = "broker:9092"\ntopic = "t"\noptions = {"security.protocol" = "SASL_SSL"}', 0),
    ],
)
def test_who_can_read_the_events(tmp_path: Path, sink: str, told: int) -> None:
    (tmp_path / "s").write_text(SECRETS[0])
    file = tmp_path / "events.toml"
    file.write_text(f"[sinks.one]\n{sink}\n")
    events = load_events(file)
    found = exposure.diagnoses_of(Settings(), events)
    assert [each.subject for each in found] == [Subject.EVENTS] * told
    assert events.files == ((tmp_path / "s",) if "secret_file" in sink else ())
    file.write_text('[pre_create]\nurl = "http://app/ask"\nsecret_file = "s"\n')
    assert [each.subject for each in exposure.diagnoses_of(Settings(), load_events(file))] == [Subject.EVENTS]


def test_the_worst_comes_first_and_each_once() -> None:
    disk, backup, files = Subject.DISK, Subject.BACKUP, Subject.FILES
    found = [note(disk, "a", "b"), warning(backup, "a", "b"), warning(files, "a", "b"), error(backup, "a", "b")]
    assert [str(each)[:15] for each in worst_first(found * 2)] == [
        "error  backup: ",
        "warning  files:",
        "warning  backup",
        "note  disk: a; ",
    ]


@pytest.mark.parametrize(("ahead", "told"), [(0, ""), (2.9, ""), (-2.9, ""), (3.1, "ahead of"), (-40, "40 s behind")])
def test_clocks_may_differ_by_two_seconds(ahead: float, told: str) -> None:
    found = diagnoses_of_skew("Redis", ahead, within_seconds=1)
    assert told in " ".join(map(str, found))
    assert bool(found) == bool(told)


@pytest.mark.parametrize(
    ("mounts", "told"),
    [
        ("/ rw,relatime - ext4 /dev/vda rw,discard", []),
        ("/ rw - ext4 /dev/vda rw,nobarrier", ["warning"]),
        ("/ rw - ext4 /dev/vda rw,barrier=0", ["warning"]),
        ("/srv rw - tmpfs tmpfs rw", ["error"]),
        ("/srv ro - ext4 /dev/vda rw", ["error"]),
        ("/srv/data/blobs rw - ext4 /dev/vda rw", ["error"]),
        ("/srv/elsewhere ro - tmpfs tmpfs rw", []),
    ],
)
def test_what_a_mount_does_to_the_data(mounts: str, told: list[str]) -> None:
    found = diagnoses_of_mounts(Path("/srv/data"), parse_mounts([f"1 0 0:1 / {mounts}"]))
    assert [(each.level, each.subject) for each in found] == [(level, "disk") for level in told]


def test_redis_may_be_rebuilt_and_may_not_evict() -> None:
    odd = {"appendonly": "no", "appendfsync": "no", "maxmemory-policy": "allkeys-lru"}
    assert [each.level for each in diagnoses_of_redis_settings(odd)] == ["note", "note", "warning"]
    assert diagnoses_of_redis_settings({"appendonly": "yes", "maxmemory-policy": "noeviction"}) == []


ABORT = {"Status": "Enabled", "Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"Status": "Enabled", "Filter": {"Prefix": "files/"}, "Expiration": {"Days": 30}}, ["error"]),
        ({"Status": "Enabled", "Prefix": "", "Expiration": {"Date": "2027-01-01"}}, ["error"]),
        ({"Status": "Enabled", "Filter": {"And": {"Prefix": "files/u/"}}, "Expiration": {"Days": 1}}, ["error"]),
        ({"Status": "Enabled", "Filter": {}, "Transitions": [{"StorageClass": "GLACIER"}]}, ["error"]),
        ({"Status": "Enabled", "Filter": {}, "Transitions": [{"StorageClass": "STANDARD_IA"}]}, []),
        ({"Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}, []),
        ({"Status": "Enabled", "Filter": {"Prefix": "others/"}, "Expiration": {"Days": 30}}, []),
        ({"Status": "Enabled", "Filter": {"Prefix": "files/s/"}, "Expiration": {"Days": 30}}, []),
        ({"Status": "Enabled", "Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}}, []),
        ({"Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 9}}, []),
        (ABORT, ["warning"]),
        (ABORT | {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}, []),
    ],
)
def test_which_rules_of_a_bucket_take_what_is_needed(rule: dict[str, Any], told: list[str]) -> None:
    found = diagnoses_of_rules([rule], "files/", 7 * 86400)
    assert [(each.level, each.subject) for each in found] == [(level, "bucket") for level in told]
