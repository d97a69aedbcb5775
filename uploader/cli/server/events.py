"""`uploader events`: lists events and their deliveries, sends events again, and tests a sink."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from uploader.cli.server.services import EXIT_FAILED, load_settings, with_services
from uploader.cli.terminal import EXIT_USAGE, WHEN, fail, say

if TYPE_CHECKING:
    from uploader.service.events import Delivery, Message

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
_SINCE = click.option("--since", type=WHEN, help="Only events since a time, or a duration such as 2h.")


@click.group()
def events() -> None:
    """Show, replay and test events. UPLOADER_EVENTS and docs/events.md explain sinks."""


@events.command("list")
@_SINCE
@click.option("--dead", is_flag=True, help="Only events that a sink refused in every attempt.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Print so many at the most."
)
@_AS_JSON
def list_(since: datetime | None, dead: bool, limit: int, as_json: bool) -> None:
    """Print events, newest first, and their state at each sink."""
    newest = with_services(
        load_settings(), lambda services: services.reviewing.newest(limit=limit, since=since, dead=dead)
    )
    for message, told in newest:
        if as_json:
            say(json.dumps(_facts(message, told)))
            continue
        words = f"{message.created_at:%Y-%m-%d %H:%M:%S}  {message.id}  {message.type:<17}  {message.subject}"
        say(f"{words}  {', '.join(f'{each.sink} {_state(each)}' for each in told)}")


@events.command()
@click.argument("event_id")
@_AS_JSON
def show(event_id: str, as_json: bool) -> None:
    """Print the event EVENT_ID, and its state at each sink."""
    message, told = with_services(load_settings(), lambda services: services.reviewing.one(event_id))
    facts = _facts(message, told)
    if as_json:
        say(json.dumps(facts))
        return
    for name in ("id", "type", "subject", "time"):
        say(f"{name}: {facts[name]}")
    for line in f"data: {json.dumps(facts['data'], indent=2, ensure_ascii=False)}".split("\n"):
        say(line)
    for each in told:
        when = f"{each.due_at:%Y-%m-%d %H:%M:%S}"
        error = json.dumps(each.last_error, ensure_ascii=False) if each.last_error else ""
        say(f"{each.sink}: {_state(each)} {when} {error}".rstrip())


@events.command()
@_SINCE
@click.option("--dead", is_flag=True, help="Only events that a sink refused in every attempt.")
@click.option("--id", "event_id", metavar="EVENT_ID", help="Only this event.")
@click.option("--sink", help="Send to this sink only.")
def replay(since: datetime | None, dead: bool, event_id: str | None, sink: str | None) -> None:
    """Send events to sinks once more: choose them by --since, --dead or --id."""
    if since is None and not dead and event_id is None:
        fail("say --since, --dead or --id", EXIT_USAGE)
    count = with_services(
        load_settings(),
        lambda services: services.reviewing.replay(sink=sink, event_id=event_id, since=since, dead=dead),
    )
    say(f"events to be sent once more: {count}")


@events.command()
@click.argument("sink")
def test(sink: str) -> None:
    """Send SINK an event of the type `test`. A sink that was switched off is used again if it accepts the event."""
    error = with_services(load_settings(), lambda services: services.reviewing.test(sink))
    if error is not None:
        fail(f"{sink} did not take the event: {error}", EXIT_FAILED)
    say(f"{sink} took the event")


def _state(delivery: "Delivery") -> str:
    return f"{delivery.state} ({delivery.failures} failed)" if delivery.failures else delivery.state


def _facts(message: "Message", told: "list[Delivery]") -> dict[str, Any]:
    return {
        "id": message.id,
        "type": message.type,
        "subject": message.subject,
        "user_id": message.user_id,
        "time": _moment(message.created_at),
        "data": json.loads(message.data),
        "deliveries": [
            {
                "sink": each.sink,
                "state": each.state,
                "failed": each.failures,
                "at": _moment(each.due_at),
                "last_error": each.last_error,
            }
            for each in told
        ],
    }


def _moment(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
