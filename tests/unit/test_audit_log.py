"""No command of those who run a server is forgotten by the audit log, and the page has a word for each action."""

from pathlib import Path

import uploader
from tests.support.audited import COMMANDS, server_commands
from uploader.domain.audit_log import Action


def test_of_every_command_it_is_said_what_the_trail_tells() -> None:
    assert set(COMMANDS) == set(server_commands())


def test_the_page_has_a_word_for_each_action_in_both_languages() -> None:
    words = (Path(uploader.__file__).parent / "web" / "pages" / "admin" / "audit" / "words.js").read_text()
    assert [action for action in Action if words.count(f'"audit.{action.value}":') != 2] == []
