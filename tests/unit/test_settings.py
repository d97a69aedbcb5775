"""Settings: what each parser takes and refuses, how a start is stopped, and what a person is shown."""

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.errors import ConfigurationError
from uploader.settings import Settings, variable_of
from uploader.units import format_duration, format_size, parse_duration, parse_moment, parse_rate, parse_size


def problems_of(environment: dict[str, str], **overrides: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(environment, **overrides)
    return caught.value.detail.splitlines()


SIZES = {
    0: ["0"],
    1: ["1B"],
    123: ["123", " 123 "],
    64 << 10: ["64KiB", "64 KiB", "64kib", "64K", "64k"],
    1 << 30: ["1G", "1 g"],
    10**9: ["1GB", "1gb"],
    8 << 20: ["8MiB"],
    5_000_000: ["5MB"],
    1_500_000_000: ["1.5GB"],
    10 << 30: ["10 GiB"],
    2 << 40: ["2TiB"],
    3 * 10**12: ["3TB"],
    2**63 - 1: [str(2**63 - 1)],
}
NO_SIZES = ("", "-1", "+1", "1e3", "ten", "1XiB", "1 2", ".5", "5.", "1,5GB", "0x10", "1_000", "٣", "1iB", "nan", "inf")
TOO_LARGE = (str(2**63), "9223372036854775808B", "8388608TiB", "9" * 400 + ".5", "9" * 5000)


def test_a_size_is_bytes_or_a_number_with_a_unit() -> None:
    assert {size: {parse_size(text) for text in texts} for size, texts in SIZES.items()} == {
        size: {size} for size in SIZES
    }
    for text in (*NO_SIZES, *TOO_LARGE):
        with pytest.raises(ValueError, match=r"size|larger|digits"):
            parse_size(text)


@given(st.integers(0, 2**63 - 1), st.integers(0, 36500 * 86_400_000).map(lambda milliseconds: milliseconds / 1000))
def test_a_formatted_size_or_duration_is_parsed_back_exactly(size: int, seconds: float) -> None:
    assert parse_size(format_size(size)) == size
    assert [format_size(parse_size(text)) for text in ("1G", "1GB", "1536MiB", "1000KiB")] == [
        *("1GiB", "1GB", "1536MiB", "1000KiB")
    ]
    assert parse_duration(format_duration(seconds)) == seconds


def test_leap_second_is_the_second_after_it_and_a_time_without_offset_has_the_zone_that_is_given() -> None:
    after = datetime(2017, 1, 1, tzinfo=UTC)
    for text in ("2016-12-31T23:59:60Z", "2016-12-31 23:59:60", "2017-01-01t05:29:60+05:30", "2017-01-01"):
        assert parse_moment(text) == after
    assert parse_moment("2016-12-31T23:59:60", zone=timezone(timedelta())) == after
    assert parse_moment("2017-01-01T00:00:00", zone=None) == datetime(2017, 1, 1).astimezone()
    for text in ("2016-12-31T23:59:60+01:00", "2016-12-31T23:58:60Z", "9999-12-31T23:59:60Z", "0001-01-01T00:00+01:00"):
        with pytest.raises(ValueError, match=r"second|range"):
            parse_moment(text)


def test_a_duration_is_seconds_or_a_number_with_a_unit_and_a_rate_a_size_a_second() -> None:
    seconds = {"5": 5, "5s": 5, "0.5s": 0.5, "500ms": 0.5, "10m": 600, "12 h": 43200, "7d": 604800, " 0 ": 0}
    assert {text: parse_duration(text) for text in seconds} == seconds
    for text in ("", "-5s", "5 weeks", "5S", "1e3s", "s", "5s5s", "inf", "nan", "36501d", "9" * 400):
        with pytest.raises(ValueError, match=r"duration|longer"):
            parse_duration(text)
    assert parse_rate("1KiB/s") == parse_rate("1 KiB") == parse_rate("1024") == 1024
    with pytest.raises(ValueError, match="size"):
        parse_rate("1KiB/m")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("DATA", "/srv/data", "data", Path("/srv/data")),
        ("REDIS_URL", "redis://cache/0", "redis_url", "redis://cache/0"),
        ("HOST", "::1", "host", "::1"),
        ("PORT", "0", "port", 0),
        ("JOBS", "false", "jobs", False),
        ("CPU_AFFINITY", "off", "cpu_affinity", "off"),
        ("CHUNK_SIZE", "1MiB", "chunk_size_bytes", 1 << 20),
        ("QUIET_INTERVAL", "250ms", "quiet_interval_seconds", 0.25),
        ("MIN_BODY_RATE", "4KiB/s", "min_body_rate_bytes", 4096),
        ("JWT_ALGORITHMS", "ES256, EdDSA", "jwt_algorithms", ("ES256", "EdDSA")),
        ("CORS_ORIGINS", "https://a.b,http://[::1]:80", "cors_origins", ("https://a.b", "http://[::1]:80")),
    ],
)
def test_a_variable_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    assert getattr(Settings.load({f"UPLOADER_{name}": text}), field) == value


BAD = {
    "PORT": ["65536", "-1", "80a", "٨٠"],
    "WORKERS": ["0", "1.5"],
    "SHARDS": ["101"],
    "JOBS": ["yes", "True", "1"],
    "CPU_AFFINITY": ["on", "0"],
    "AUTH": ["jwks", ""],
    "HOST": [""],
    "CHUNK_SIZE": ["0"],
    "QUIET_INTERVAL": ["0s"],
    "UPLOAD_EXPIRY": ["99999999999999d"],
    "MAX_FILE_SIZE": ["9" * 400 + ".5"],
    "LOG_LEVEL": ["INFO"],
    "LOG_FORMAT": ["xml"],
    "METRICS": ["closed"],
    "INSTANT": [""],
    "STORAGE": [""],
    "JWT_ALGORITHMS": ["none", "HS256,", "hs256"],
    "JWT_LEEWAY": ["31s"],
    "LINK_LIFETIME": ["31d", "0"],
    "TLS_KEY": [""],
    "TRUSTED_HEADER": ["X Remote", "Authorization"],
    "TRUSTED_PROXIES": ["10.0.0.1/8", "proxy.example", "10.0.0.1,"],
    "CORS_ORIGINS": ["app.example", "https://app.example/", "https://*.example", "null"],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_stops_the_start_with_one_line_that_names_it(name: str) -> None:
    for text in BAD[name]:
        (line,) = problems_of({f"UPLOADER_{name}": text})
        assert line.startswith(f"UPLOADER_{name}: {text!r}: ")


def test_zero_is_taken_where_it_has_a_meaning() -> None:
    zeros = {"MERGE_WAIT": "merge_wait_seconds", "JWT_LEEWAY": "jwt_leeway_seconds"}
    zeros |= {"DEFAULT_TOTAL_SPACE": "default_total_space_bytes", "FREE_SPACE_FLOOR": "free_space_floor_bytes"}
    for name, field in zeros.items():
        assert getattr(Settings.load({f"UPLOADER_{name}": "0"}), field) == 0


def test_names_of_other_programs_are_left_alone() -> None:
    environment = {"PATH": "/bin", "uploader_port": "x", "UPLOADERPORT": "x"}
    environment |= {"UPLOADER_URL": "http://x", "UPLOADER_TOKEN": "t", "UPLOADER_TEST_REDIS_URL": "redis://x"}
    assert Settings.load(environment) == Settings.load({}) == Settings()


def test_an_unknown_name_stops_the_start() -> None:
    names = ("UPLOADER_PROT", "UPLOADER_", "UPLOADER_port", "UPLOADER_TESTING", "UPLOADER_X_FILE", "UPLOADER_PORT_FILE")
    for name in names:
        assert problems_of({name: "1"}) == [f"{name}: no such setting"]
    lines = problems_of({"UPLOADER_PORT": "high", "UPLOADER_PROT": "1", "UPLOADER_JOBS": "maybe\nnot"})
    assert [line.split(":")[0] for line in lines] == ["UPLOADER_JOBS", "UPLOADER_PORT", "UPLOADER_PROT"]


def test_overrides_win_over_the_environment_and_none_is_no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load({"UPLOADER_PORT": "1", "UPLOADER_HOST": "::1"}, port=2, host=None)
    assert (settings.port, settings.host) == (2, "::1")
    lines = problems_of({"UPLOADER_MAX_DELAY": "10s"}, quiet_interval_seconds=11.0)
    assert lines == ["UPLOADER_QUIET_INTERVAL: longer than UPLOADER_MAX_DELAY"]
    monkeypatch.setenv("UPLOADER_PORT", "8123")
    assert Settings.load().port == 8123


def test_a_secret_may_come_from_a_file_and_the_variable_wins_over_it_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:secret@cache/0\n")
    of_file = ("UPLOADER_REDIS_URL_FILE", str(tmp_path / "url"))
    assert Settings.load(dict([of_file])).redis_url == "redis://:secret@cache/0"
    pairs = [("UPLOADER_REDIS_URL", "redis://variable"), of_file]
    assert {Settings.load(dict(order)).redis_url for order in (pairs, pairs[::-1])} == {"redis://variable"}


def test_a_secret_file_that_is_missing_or_empty_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    environment = {"UPLOADER_REDIS_URL_FILE": str(tmp_path / "none")}
    environment |= {"UPLOADER_DATABASE_URL_FILE": str(tmp_path / "empty")}
    lines = problems_of(environment)
    assert [line.split(":")[0] for line in lines] == ["UPLOADER_DATABASE_URL_FILE", "UPLOADER_REDIS_URL_FILE"]
    assert "No such file" in lines[1]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hidden@cache:6379/0", "redis://:***@cache:6379/0"),
        ("rediss://user:hidden@cache/0", "rediss://user:***@cache/0"),
        ("redis://user:hid@den@cache/0", "redis://user:***@cache/0"),
        ("redis://us@er:hidden@cache/0", "redis://us@er:***@cache/0"),
        ("redis://:hid:den@cache/0", "redis://:***@cache/0"),
        ("redis+sentinel://a/b?sentinel_password=hidden", "redis+sentinel://a/b?sentinel_password=***"),
        ("redis://cache:6379/0?password=hidden&db=1", "redis://cache:6379/0?password=***&db=1"),
        ("unix://:hidden@/run/redis.sock", "unix://:***@/run/redis.sock"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
    ],
)
def test_a_password_in_a_url_is_masked_and_the_rest_is_shown(url: str, shown: str) -> None:
    assert Settings(redis_url=url).shown()["UPLOADER_REDIS_URL"] == shown


def test_a_secret_that_is_no_url_is_masked_whole_and_a_bad_one_not_repeated_in_the_complaint() -> None:
    bucket: dict[str, Any] = {"storage": "s3://bbb", "s3_access_key_id": "x" * 20, "s3_secret_access_key": "x" * 40}
    shown = Settings(jwt_secret="x" * 40, link_secret="x" * 40, secret="x" * 40, **bucket).shown() | {
        "UPLOADER_JWT_PUBLIC_KEY": Settings(jwt_public_key="x" * 40).shown()["UPLOADER_JWT_PUBLIC_KEY"]
    }
    secret = ("SECRET", "JWT_SECRET", "JWT_PUBLIC_KEY", "LINK_SECRET", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")
    assert {shown[f"UPLOADER_{name}"] for name in secret} == {"***"}
    (line,) = problems_of({"UPLOADER_DATABASE_URL": "postgresql://user:hidden@host/name"})
    assert line.startswith("UPLOADER_DATABASE_URL: ")
    assert "hidden" not in line


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_every_setting_is_shown_under_the_name_of_its_variable_and_can_be_loaded_again() -> None:
    shown = Settings().shown()
    assert list(shown) == [variable_of(field) for field in fields(Settings)]
    unset = [variable_of(field) for field in fields(Settings) if field.metadata["default"] is None]
    assert [name for name, text in shown.items() if text == "(unset)"] == unset
    settings = Settings(closed_retention_seconds=90_061.5, upload_expiry_seconds=2_592_000, jobs=False, port=0)
    again = {name: text for name, text in settings.shown().items() if text != "(unset)"}
    assert Settings.load(again) == settings


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"chunk_size_bytes": 1, "min_chunk_size_bytes": 2}, "CHUNK_SIZE"),
        ({"chunk_size_bytes": 1 << 27}, "CHUNK_SIZE"),
        ({"quiet_interval_seconds": 61.0}, "QUIET_INTERVAL"),
        ({"max_chunk_size_bytes": (1 << 30) + 1}, "MAX_CHUNK_SIZE"),
        ({"database_url": "mysql://host/name"}, "DATABASE_URL"),
        ({"redis_url": "http://host"}, "REDIS_URL"),
        ({"storage": "gs://bucket"}, "STORAGE"),
        ({"storage": "s3://bucket", "s3_endpoint": "store:9000"}, "S3_ENDPOINT"),
        ({"storage": "s3://bucket", "s3_access_key_id": "me"}, "S3_ACCESS_KEY_ID"),
        ({"storage": "s3://bucket", "s3_secret_access_key": "x"}, "S3_SECRET_ACCESS_KEY"),
        ({"s3_endpoint": "http://store"}, "S3_ENDPOINT"),
        ({"s3_access_key_id": "me", "s3_secret_access_key": "x"}, "S3_ACCESS_KEY_ID"),
        ({"auth": "jwt"}, "AUTH"),
        ({"auth": "jwt", "jwt_secret": "x" * 32, "jwt_jwks": "file"}, "AUTH"),
        ({"jwt_secret": "x" * 31}, "JWT_SECRET"),
        ({"link_secret": "x" * 31}, "LINK_SECRET"),
        ({"secret": "x" * 31}, "SECRET"),
        ({"trusted_header": "X-User"}, "TRUSTED_HEADER"),
        ({"tls_key": Path("key")}, "TLS_KEY"),
        ({"tls_certificate": Path("certificate")}, "TLS_CERTIFICATE"),
        ({"trusted_header": "X-User", "trusted_proxies": ("::1",), "auth": "none"}, "TRUSTED_HEADER"),
        ({"auth": "none", "cors_origins": ("*",)}, "CORS_ORIGINS"),
        (
            {"trusted_header": "X-User", "trusted_proxies": ("::1",), "cors_origins": ("*", "http://a")},
            "CORS_ORIGINS",
        ),
        ({"redis_url": "cache", "quiet_interval_seconds": 61.0}, "QUIET_INTERVAL REDIS_URL"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_one_line_each(values: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**values)
    assert [line.split(":")[0] for line in caught.value.detail.splitlines()] == [
        f"UPLOADER_{name}" for name in names.split()
    ]
