"""The file that `UPLOADER_EVENTS` names, as it is read, and the signatures made with its secrets."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.documents import DOCS, blocks
from uploader.domain.events import EventType
from uploader.errors import ConfigurationError
from uploader.sinks.configuration import (
    EventSettings,
    HandlerSettings,
    KafkaSettings,
    QueueSettings,
    StreamSettings,
    WebhookSettings,
    load_events,
    parse_secret,
    signed_headers,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

# As docs/events.md has it, but for comments.
EXAMPLE = "\n".join(blocks(DOCS / "events.md", "toml"))


QUEUE = '[queues.scan]\ntypes = ["file.finished"]\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name, text in (("scan", SECRET), ("may", SECRET), ("old", OTHER)):
        (tmp_path / f"{name}.secret").write_text(f"{text}\n")
    (tmp_path / "lake.password").write_text("open sesame\n")
    return tmp_path


def load(directory: Path, text: str) -> EventSettings:
    path = directory / "events.toml"
    path.write_text(text)
    return load_events(path)


def test_without_a_file_nobody_is_told_and_nobody_asked() -> None:
    settings = load_events(None)
    assert settings == EventSettings({}, None)
    assert settings.sinks_of(EventType.FILE_FINISHED) == ()
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        load_events(Path("/nowhere/none.toml"))


def test_the_example_of_the_page(directory: Path) -> None:
    settings = load(directory, EXAMPLE)
    scan, log, lake = (settings.sinks[name] for name in ("scan", "log", "lake"))
    assert isinstance(scan, WebhookSettings)
    assert scan.to.secrets == (parse_secret(SECRET),)
    assert log == StreamSettings(None, "uploader:events", 20_000, tuple(EventType))
    assert isinstance(lake, KafkaSettings)
    assert lake.options["bootstrap.servers"] == "127.0.0.1:9092"
    assert (lake.options["sasl.mechanism"], lake.options["sasl.password"]) == ("PLAIN", "open sesame")
    assert settings.pre_create is not None
    assert not settings.pre_create.allows_on_failure
    assert settings.sinks_of(EventType.FILE_FINISHED) == ("scan", "log", "lake")
    assert settings.sinks_of(EventType.FILE_DELETED) == ("log", "lake")
    assert not [hidden for hidden in ("sesame", repr(parse_secret(SECRET))) if hidden in repr(settings)]
    rotated = EXAMPLE.replace('= "may.secret"', '= ["may.secret", "old.secret"]').replace('"refuse"', '"allow"')
    pre_create = load(directory, rotated).pre_create
    assert pre_create is not None
    assert (pre_create.to.secrets, pre_create.allows_on_failure) == ((parse_secret(SECRET), parse_secret(OTHER)), True)


def test_a_stream_in_the_redis_of_the_server_is_shorter(directory: Path) -> None:
    own = load(directory, '[sinks.a]\ntype = "redis"').sinks["a"]
    other = load(directory, '[sinks.a]\ntype = "redis"\nurl = "redis://a"').sinks["a"]
    assert isinstance(own, StreamSettings)
    assert isinstance(other, StreamSettings)
    assert (own.maxlen, other.maxlen) == (20_000, 1_000_000)


def test_a_queue_has_a_task_of_each_event_of_its_types(directory: Path) -> None:
    settings = load(directory, f'{QUEUE}lease = "90s"\nmax_attempts = 3\n[sinks.log]\ntype = "redis"')
    assert settings.queues == {"scan": QueueSettings((EventType.FILE_FINISHED,), 90.0, 3)}
    assert load(directory, QUEUE).queues == {"scan": QueueSettings((EventType.FILE_FINISHED,), 600.0, 5)}
    assert settings.sinks_of(EventType.FILE_FINISHED) == ("log", "scan")
    assert settings.sinks_of(EventType.FILE_DELETED) == ("log",)


@pytest.mark.parametrize("table", ['[sinks.scan]\ntype = "redis"\n', QUEUE])
def test_a_handler_has_no_name_of_a_sink_or_a_queue(directory: Path, table: str) -> None:
    handler = HandlerSettings(print, (EventType.FILE_FINISHED,))
    settings = load(directory, table)
    assert settings.with_handlers({"other": handler}).sinks_of(EventType.FILE_FINISHED)
    with pytest.raises(ConfigurationError, match="scan] has the name of a handler"):
        settings.with_handlers({"scan": handler})


def hook(url: str, secret_file: str = "scan.secret") -> str:
    return f'[sinks.a]\ntype = "webhook"\nurl = "{url}"\nsecret_file = "{secret_file}"'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a =", "Invalid value"),
        ("sinks = 3", "sinks: is no table"),
        ("[sink.a]", "sink: no such table"),
        ("[sinks.a]", "[sinks.a] Object missing required field `type`"),
        ('[sinks.a]\ntype = "smtp"', "[sinks.a] type: Invalid value 'smtp'"),
        ('[sinks.a]\ntype = "redis"\nmaxlne = 1', "[sinks.a] Object contains unknown field `maxlne`"),
        ('[sinks.a]\ntype = "redis"\nmaxlen = "1"', "[sinks.a] maxlen: Expected `int`, got `str`"),
        ('[sinks.a]\ntype = "redis"\nurl = "http://a"', "[sinks.a] url: does not start with redis://"),
        ('[sinks.a]\ntype = "redis"\ntypes = ["file.made"]', "[sinks.a] types[0]: Invalid enum value 'file.made'"),
        ('[sinks.a]\ntype = "redis"\ntypes = []', "[sinks.a] types: Expected `array` of length >= 1"),
        ('[sinks."a b"]\ntype = "redis"', "[sinks.a b] is no name of a sink"),
        ('[sinks.a]\ntype = "webhook"\nurl = "http://a"', "[sinks.a] Object missing required field `secret_file`"),
        (hook("ftp://a"), "[sinks.a] url: is no address"),
        (hook("http://[a"), "[sinks.a] url: is no address"),
        (hook("http://u:p@a"), "[sinks.a] url: is no address"),
        (hook("http://:p@a"), "[sinks.a] url: is no address"),
        (hook("http://a", "none"), "[sinks.a] secret_file: none: No such file"),
        (hook("http://a", "lake.password"), "[sinks.a] secret_file: lake.password holds no secret"),
        ("queues = 3", "queues: is no table"),
        ("[queues.a]", "[queues.a] Object missing required field `types`"),
        ('[queues."a b"]\ntypes = ["file.finished"]', "[queues.a b] is no name of a queue"),
        ('[queues.a]\ntypes = ["file.finished"]\nlease = "soon"', "[queues.a] lease: not a duration"),
        ('[queues.a]\ntypes = ["file.finished"]\nlease = "8d"', "[queues.a] lease: not from 1s to 1d"),
        ('[queues.a]\ntypes = ["file.finished"]\nmax_attempts = 0', "[queues.a] max_attempts: Expected `int` >= 1"),
        (f'{QUEUE}[sinks.scan]\ntype = "redis"', "[queues.scan] has the name of a sink"),
        ('[pre_create]\nurl = "http://a"\nsecret_file = "scan.secret"\non_failure = "ask"', "[pre_create] on_failure:"),
    ],
)
def test_a_mistake_is_told_with_its_file_table_and_key(directory: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(directory, text)
    assert refused.value.reason.startswith(f"UPLOADER_EVENTS: {directory / 'events.toml'}: {told}")
    assert "sesame" not in refused.value.reason


def test_every_mistake_has_a_line_of_its_own(directory: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(directory, '[sinks.a]\ntype = "smtp"\n[sinks.b]\ntype = "redis"\nmaxlen = 0\n[pre_create]')
    assert [line.split(": ", 2)[2].split()[0] for line in refused.value.reason.splitlines()] == [
        *("[sinks.a]", "[sinks.b]", "[pre_create]")
    ]


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The vector that its libraries are tested with; and, while one is rotated, a signature of each secret."""
    at = datetime.fromtimestamp(1614265330.9, UTC)
    body = b'{"test": 2432232314}'
    message_id, signature = "msg_p5jXN8AQM9LWM0D4loKWxJek", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = signed_headers([parse_secret(SECRET)], message_id, at, body)
    assert list(headers) == ["webhook-id", "webhook-timestamp", "webhook-signature"]
    assert list(headers.values()) == [message_id, "1614265330", signature]
    both = signed_headers([parse_secret(OTHER), parse_secret(SECRET)], message_id, at, body)
    assert both["webhook-signature"].split()[1] == signature
