"""The documents say what the code does: every setting, command, metric, error code and script is compared with its page."""

import ast
import base64
import hmac
import json
import re
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError
from prometheus_client.metrics import MetricWrapperBase

import uploader
from tests.mutants.places import parsed
from tests.support import screenshots
from tests.support.audited import COMMANDS, server_commands
from tests.support.consumer import SECRETS
from tests.support.documents import DOCS, blocks
from tests.support.process import run_program
from tests.support.reference import pages
from tests.support.rows import NOW, file_row, upload_row
from uploader.database import models
from uploader.domain import events
from uploader.domain.audit_log import Action
from uploader.domain.diagnosis import Subject
from uploader.domain.events import EventType, Message, News
from uploader.domain.reasons import REASONS
from uploader.domain.upload import Reason
from uploader.runtime import observability
from uploader.service.events import RETRY_SECONDS
from uploader.service.ids import new_id
from uploader.settings import FOREIGN_NAMES, Settings, variable_of
from uploader.sinks.base import envelope_of
from uploader.sinks.configuration import parse_secret, signed_headers
from uploader.units import parse_duration

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BUILDS = [ROOT / name for name in (".ci/Dockerfile", "docker-compose.yml", "pyproject.toml", "tests/run")]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
SCRIPTS = sorted(
    Path(str(path))
    for path in files("uploader.accounting.scripts").iterdir()
    if path.name.endswith(".lua") and not path.name.startswith("_")
)

SECRET_FILES = {f"{variable_of(setting)}_FILE" for setting in fields(Settings) if setting.metadata["secret"]}
PACKAGE = Path(uploader.__file__).parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# Directories of one machine, and the hosts that packages and images come from.
_ELSEWHERE = re.compile(
    r"(?<![\w.])/(?:work|tmp|root|home|mnt|workspace|var/tmp)/\S*"
    r"|\b(?:pypi\.org|pythonhosted\.org|npmjs\.\w+|docker\.io|ghcr\.io|quay\.io|crates\.io|proxy\.golang\.org)\b"
    r"|\bregistry\.[\w.-]+"
)
# The distribution is `uploader-kit`: what PyPI has by the name of the package is another program.
_STRANGER = re.compile(
    r"\b(?:pip3?|pipx|uv)\b[^\n`]*\binstall\b[^\n`]*?(?<![\w./-])uploader(?![\w./-])"
    r"|\buvx uploader(?![\w./-])"
    r"|(?<![\w./-])uploader(?:\[[a-z0-9,]+\]| ?(?:[~=<>!]=|[<>]) ?\d| @ )"
)
# No index has it yet.
_UNPUBLISHED = re.compile(r"\b(?:pip3?|pipx|uv)\b[^\n`]*\binstall\b[^\n`]*uploader-kit|\binstall `uploader-kit\[")


def without_code(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def table(path: Path, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    text = f"\n{path.read_text()}"
    assert f"\n{heading}\n" in text, f"{path.name} has no {heading!r}"
    section = re.split(r"^#+ ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    # A bar in a cell is escaped.
    rows = [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    assert len(rows) > 2, f"{path.name} has no table below {heading!r}"
    return rows[2:]


def anchors(path: Path) -> set[str]:
    """The fragments that links may name, made from the headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def metrics() -> dict[str, tuple[str, str]]:
    """Every metric by the name that Prometheus shows: its type and what it says."""
    found = {}
    for metric in _made():
        for family in metric.describe():
            suffix = "_total" if family.type == "counter" else ""
            found[family.name + suffix] = (family.type, family.documentation)
    return found


def _made() -> list[MetricWrapperBase]:
    return [metric for metric in vars(observability).values() if isinstance(metric, MetricWrapperBase)]


def test_a_page_that_is_made_from_the_code_is_as_it_makes_it() -> None:
    """`python -m tests.support.reference` makes it anew."""
    assert [page.name for page, made in pages().items() if page.read_text() != made] == []


def test_the_configuration_names_the_file_variant_of_every_secret_setting_and_of_no_other() -> None:
    assert set(re.findall(r"UPLOADER_\w+_FILE\b", (ROOT / "docs/configuration.md").read_text())) == SECRET_FILES


def test_the_readme_gives_the_two_commands_of_a_newcomer() -> None:
    first, second, *_ = blocks(ROOT / "README.md", "bash")
    assert first == "python3 -m venv .venv && .venv/bin/pip install -q '.[server]' && .venv/bin/uploader serve\n"
    assert second == "tests/run\n"


def test_the_readme_compares_by_figures_that_were_measured() -> None:
    measured = set(re.findall(r"(?<=\| )[\d,]+", (ROOT / "docs" / "performance.md").read_text()))
    figures = set(re.findall(r"([\d,]+) (?:MB|files)/s", (ROOT / "README.md").read_text()))
    assert len(figures) > 3
    assert figures - measured == set()


def test_no_docstring_begins_with_a_clause_as_a_subject() -> None:
    """`tests/` and `benchmarks/` have some of old."""
    begin = re.compile(r'^ *r?"""(?:What|Whether|Who|Whom|Whose|Whoever|Which|Where|How) .*', re.MULTILINE)
    sources = [path for directory in (PACKAGE, ROOT / "migrations", ROOT / "docs") for path in directory.rglob("*.py")]
    assert {path.name: begin.findall(path.read_text()) for path in sources if begin.search(path.read_text())} == {}


def _oldest() -> dict[str, str]:
    """Return the oldest version that is allowed of each library that a server or a client may need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in ("server", "s3", "kafka"):
        lines += project["optional-dependencies"][extra]
    found = [re.match(r"([\w-]+)(?:\[\w+\])?[>~]=([\w.]+)", line) for line in lines]
    return {each[1]: each[2] for each in found if each}


def test_the_page_on_contributing_says_of_each_library_why_not_an_older_one() -> None:
    rows = table(ROOT / "docs" / "contributing.md", "## The oldest libraries")
    assert {name.strip("`"): version for name, version, why in rows if why} == _oldest()


def test_the_index_of_decisions_has_each_once() -> None:
    links = _LINK.findall((ROOT / "docs" / "decisions" / "README.md").read_text())
    assert sorted(links) == [decision.name for decision in DECISIONS]


def test_documents_are_read_to_their_end() -> None:
    """The changelog grows with each version, and is read from its top."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert [page.name for page in DOCUMENTS if page.name != "changelog.md" and page.stat().st_size > 25 << 10] == []


# The other pages


def test_the_page_on_monitoring_lists_every_metric_with_its_type_and_meaning() -> None:
    rows = table(ROOT / "docs" / "monitoring.md", "## Metrics")
    assert {name.strip("`"): (kind, about) for name, kind, about in rows} == metrics()
    assert len(rows) == len(metrics()), "a metric is listed twice"


# The test of what ends each that grows, by a clock that is turned where time ends it.
ENDS = {
    "open uploads": "test_idle_uploads_expire_in_one_round_and_give_everything_back",
    "closed uploads": "test_the_collector_forgets_uploads_that_were_closed_long_ago",
    "concatenations": "test_what_is_written_down_of_an_order_goes_with_its_upload",
    "links": "test_a_link_that_has_ended_gives_back_what_is_open_and_is_forgotten",
    "visitors of links": "test_a_link_that_has_ended_gives_back_what_is_open_and_is_forgotten",
    "empty folders": "test_each_way_out_gives_one_place_back",
    "moves and deletions of many files": "test_same_call_and_job_go_on_where_a_move_broke_off",
    "contents": "test_a_deletion_that_died_after_its_commit_is_ended_by_the_collector",
    "directories of contents": "test_a_directory_of_blobs_goes_an_hour_after_its_last_blob",
    "checksums of contents": "test_the_trash_is_purged_after_the_retention_but_not_after_a_jump_of_the_clock",
    "signatures": "test_a_signature_that_is_damaged_is_made_anew_and_it_goes_with_its_content",
    "deleted files": "test_what_was_deleted_leaves_after_the_retention",
    "deleted contents": "test_the_trash_is_purged_after_the_retention_but_not_after_a_jump_of_the_clock",
    "bytes of open uploads": "test_what_a_dead_process_left_of_a_closed_upload_goes_with_the_next_collection",
    "parts of open uploads": "test_what_a_dead_node_left_in_the_bucket_goes",
    "bytes that no row names": "test_the_job_cleans_up_what_the_reconciler_finds_once_an_hour",
    "bodies that wait": "test_a_spool_file_has_no_name",
    "events": "test_events_are_forgotten_after_a_week",
    "audit log": "test_acts_are_kept_for_as_long_as_is_set",
    "records of closed uploads": "test_a_closed_upload_leaves_a_tombstone_that_tells_how_it_ended",
    "records and tasks of open uploads": "test_a_cancel_that_died_after_its_commit_is_tidied_by_the_flusher",
    "tasks of queues": "test_an_emptied_queue_leaves_no_key",
    "costs by the hour and challenges": "test_a_challenge_expires_after_a_minute",
    "files of counters": "test_no_counter_falls_when_a_process_ends_or_is_replaced",
    "copies of a SQLite": "test_copies_are_hourly_and_two_are_kept",
    "log of the embedded Valkey": "test_a_log_that_has_grown_goes_aside_at_a_start",
    "its directories that were set aside": "test_the_last_three_that_were_set_aside_are_kept",
    "figures in memory": "test_who_has_paid_all_is_forgotten",
    "what tries the store": "test_what_an_interrupted_probe_left_is_removed_by_one_that_comes_hours_later",
}


def test_the_page_on_the_disk_has_each_table_and_what_ends_each_is_tested() -> None:
    rows = table(ROOT / "docs" / "disk.md", "## What grows, and what ends it")
    named = {name for what, *_ in rows for name in re.findall(r"`(\w+)`", what)}
    assert named == set(models.metadata.tables)
    ended = {what.partition(",")[0] for what, _, _, end in rows if not end.startswith("nothing")}
    assert ended == set(ENDS)
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [test for test in ENDS.values() if f"def {test}(" not in sources] == []


def test_the_page_on_trouble_has_each_reason_of_readyz_in_its_words() -> None:
    rows = table(ROOT / "docs" / "troubleshooting.md", "## Reasons of `/readyz`")
    wanted = [[f"`{each.check}`", re.sub(r"\{\w+\}", "…", each.what), each.do] for each in REASONS]
    assert rows == wanted


def test_the_page_of_the_doctor_has_each_subject_once_in_its_order() -> None:
    rows = table(ROOT / "docs" / "doctor.md", "## What is looked at")
    assert [subject.strip("`") for subject, _, _ in rows] == list(Subject)


def test_the_dashboard_asks_for_metrics_that_exist_by_labels_that_they_have() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    known = metrics()
    labels = {metric._name: set(metric._labelnames) for metric in _made()}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in expressions:
        names = re.findall(r"\buploader_\w+", expression)
        assert names, expression
        for name in names:
            plain = name.removesuffix("_bucket")
            assert plain in known, expression
            assert (known[plain][0] == "histogram") == (plain != name), expression
            by = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", expression)))) - {"le"}
            assert by <= labels[plain.removesuffix("_total")], expression
    assert {"uploader_pending_bytes", "uploader_queue_lag_seconds"} <= set(re.findall(r"\w+", " ".join(expressions)))
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_a_document_names_no_setting_and_no_metric_that_does_not_exist() -> None:
    names = {variable_of(setting) for setting in fields(Settings)} | SECRET_FILES | FOREIGN_NAMES | set(metrics())
    names |= {f"UPLOADER_TEST_{name}" for name in ("", "CRASH_AT", "CLOCK", "SEED", "PLACES")}
    named = re.compile(r"\b(?:UPLOADER_\w+|uploader_[a-z]+_\w+)")
    unknown = {page: set(named.findall(page.read_text())) - names for page in DOCUMENTS}
    assert {page: found for page, found in unknown.items() if found} == {}


def test_the_tree_of_the_architecture_page_has_every_module_in_its_folder() -> None:
    tree = re.sub(r" *\(.*?\)|:.*", "", ARCHITECTURE.split("\n## Layers\n", 1)[1].split("```")[1])
    found: dict[str, set[str]] = {}
    top = folder = ""
    for indent, head, names in re.findall(r"^( *)(?:(\w+)/)?(.*)$", tree, flags=re.MULTILINE):
        if head and not indent:
            top = folder = head
        elif head:
            folder = f"{top}/{head}"
        if (head or indent) and folder != "web":
            found.setdefault(folder, set()).update(re.findall(r"\w+(?![\w/])", names))
    modules: dict[str, set[str]] = {}
    for path in PACKAGE.glob("*/**/*.py"):
        if path.stem != "__init__":
            modules.setdefault(str(path.parent.relative_to(PACKAGE)), set()).add(path.stem)
    assert found == modules
    top_level = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    layers = re.search(r"^## Layers$.*?^```$(.*?)^```$", ARCHITECTURE, flags=re.DOTALL | re.MULTILINE)
    assert layers is not None
    assert top_level - {"__init__"} <= set(re.findall(r"\w+", layers[1]))


def test_the_glossary_has_each_word_once_and_does_not_rule_out_the_word_it_explains() -> None:
    words: Counter[str] = Counter()
    for cell, meaning, not_to_be_used in table(ROOT / "docs" / "glossary.md", "# Glossary"):
        assert meaning, f"{cell} is not explained"
        assert cell not in [word.strip() for word in not_to_be_used.split(",")]
        words.update(re.sub(r"\(.*?\)|`| from 0", "", word).strip() for word in re.split(r", |→", cell))
    assert words, "the glossary is empty"
    assert [word for word, count in words.items() if count > 1] == []


def test_a_decision_is_short_and_has_its_three_parts() -> None:
    for number, decision in enumerate(DECISIONS, 1):
        text = decision.read_text()
        assert text.startswith(f"# {decision.name[:4]}: "), decision.name
        assert int(decision.name[:4]) == number, "they are numbered without gaps"
        parts = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequences"], decision.name
        assert len(text.splitlines()) <= 40, decision.name


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    """What is not released is a development release of it (PEP 440)."""
    newest = re.search(r"^## (.*)$", (ROOT / "docs" / "changelog.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    released, to_come = re.fullmatch(r"\[([0-9.]+)\] - [0-9-]{10}|([0-9.]+) \(unreleased\)", newest[1]).groups()  # type: ignore[union-attr]
    assert uploader.__version__ == (released or f"{to_come}.dev0")


def test_every_relative_link_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for link in _LINK.findall(without_code(document.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, fragment = link.partition("#")
            target, said = (document.parent / path).resolve() if path else document, f"{link} of {document}"
            assert target.exists(), f"{said} leads nowhere"
            assert target.is_relative_to(ROOT), f"{said} leads out of the repository"
            assert not fragment or fragment in anchors(target), f"{said} names no heading"


def test_no_document_names_a_directory_of_one_machine_or_the_host_of_a_registry() -> None:
    clients = [ROOT / "tests" / "clients" / name for name in ("run", "package.json", "package-lock.json", ".npmrc")]
    found = {path: _ELSEWHERE.findall(path.read_text()) for path in (*DOCUMENTS, *BUILDS, *clients)}
    assert {path: elsewhere for path, elsewhere in found.items() if elsewhere} == {}


def test_every_screenshot_shows_the_pages_as_they_are() -> None:
    said = "run `python -m tests.support.screenshots`, and look at docs/images"
    assert screenshots.RECORD.read_text() == screenshots.record_of(screenshots.IMAGES), said


def test_every_part_made_elsewhere_is_in_its_table() -> None:
    vendor = PACKAGE / "web" / "vendor"
    listed = {(vendor / row[0].strip("`")).resolve() for row in table(vendor / "README.md", "# Parts made elsewhere")}
    assert listed == {path.parent for path in (PACKAGE / "web").rglob("LICENSE")}


def test_every_block_of_code_stands_between_blank_lines() -> None:
    """A fence too few makes prose of the code that follows, and code of the prose."""
    crowded = []
    for document in DOCUMENTS:
        lines = ["", *document.read_text().splitlines(), ""]
        fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
        outside = [number + (-1 if place % 2 == 0 else 1) for place, number in enumerate(fences)]
        crowded += [f"{document.name}:{number}" for number in outside if lines[number].strip()]
    assert crowded == []


def test_nothing_installs_the_program_of_others_or_a_package_that_is_not_published() -> None:
    texts = [*DOCUMENTS, *BUILDS]
    texts += [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".service", ".json", ".yml", ".toml")]
    texts += [path for suffix in ("py", "html", "js") for path in PACKAGE.rglob(f"*.{suffix}")]
    said = {str(path.relative_to(ROOT)): path.read_text() for path in texts}
    found = {name: _STRANGER.findall(text) + _UNPUBLISHED.findall(text) for name, text in said.items()}
    assert {name: commands for name, commands in found.items() if commands} == {}
    wrong = ["pip install 'uploader[s3]'", "pip install pyjwt uploader", "python3 -m pip install -U uploader"]
    wrong += ["uvx uploader serve", "needs uploader>=0.3", "uploader == 0.3.0", "`uploader[kafka]`"]
    right = ["pip install 'uploader-kit[s3]'", "pip install -q '.[s3]' && .venv/bin/uploader serve"]
    right += ["`pip install .`, then `uploader serve`", "/opt/uploader/bin/pip install --no-cache-dir ."]
    assert [text for text in wrong + right if _STRANGER.search(text)] == wrong


def test_every_script_has_a_header_that_names_its_keys_arguments_and_results() -> None:
    for script in SCRIPTS:
        lines = script.read_text().splitlines()
        header = "\n".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("--"))])
        body = "\n".join(lines[header.count("\n") + 1 :])
        for part in ("-- KEYS  1 ", "-- ARGV  1 ", "-- Returns ", "-- One script "):
            assert header.count(part) == 1, f"the header of {script.name} lacks {part!r}"
        for name, after in (("KEYS", "ARGV"), ("ARGV", "Returns")):
            text = header.split(f"-- {name}")[1].split(f"-- {after}")[0]
            listed = [int(number) for number in re.findall(r"  (\d+) ", text)]
            assert listed == list(range(1, len(listed) + 1)), f"{name} of {script.name} are not numbered in order"
            used = {int(number) for number in re.findall(rf"\b{name}\[(\d+)\]", body)}
            assert used <= set(listed), f"{script.name} uses {name} that its header does not list"


def test_the_architecture_page_names_functions_that_exist_and_at_most_ten_stops() -> None:
    section = ARCHITECTURE.split("\n## The path of a chunk\n", 1)[1].split("\n## ", 1)[0]
    stops = [int(number) for number in re.findall(r"^(\d+)\. `", section, flags=re.MULTILINE)]
    assert stops == list(range(1, len(stops) + 1))
    assert 5 <= len(stops) <= 10
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", ARCHITECTURE))
    assert len(named) > 10
    found: dict[str, set[str]] = {}
    for module in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(module.read_text())):
            if isinstance(node, ast.ClassDef):
                members = (each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
                found.setdefault(node.name, set()).update(members)
    assert {f"{name}.{member}" for name, member in named if member not in found.get(name, set())} == set()


def test_git_keeps_nothing_that_it_is_told_to_ignore() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git here, or an archive of sources")
    listed = run_program(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT
    )
    assert listed.stdout == ""


PAGE = (ROOT / "docs" / "events.md").read_text()
VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs" / "cloudevents.schema.json").read_text()))

FILE, UPLOAD = file_row(modified_at=NOW, session="0" * 64), upload_row()
NEWS = [
    events.upload_created(UPLOAD, NOW),
    events.upload_created(replace(UPLOAD, md5=None, size=0), NOW),
    *(events.upload_closed(UPLOAD, reason) for reason in Reason),
    events.file_finished(FILE),
    events.file_finished(replace(FILE, md5=None)),
    events.file_refused(FILE),
    events.file_refused(FILE, "EICAR"),
    events.file_deleted(replace(FILE, damaged=True)),
    events.file_deleted(FILE, events.REPLACED),
    events.content_damaged(FILE),
    events.content_healed(FILE),
    events.content_damaged(FILE, True),
]


def block(language: str, containing: str) -> str:
    (one,) = blocks(DOCS / "events.md", language, containing)
    return one


def as_told(news: News) -> Any:
    data = msgspec.json.encode(news.data)
    message = Message(new_id(), news.type.value, news.subject, news.user_id, NOW, data)
    return json.loads(envelope_of(message, f"/uploader/{'0' * 32}").body)


def test_every_event_is_as_the_schema_says() -> None:
    for event in map(as_told, NEWS):
        VALIDATOR.validate(event)
        for broken in (event | {"type": "file.moved"}, event | {"data": {**event["data"], "secret": 1}}):
            with pytest.raises(ValidationError):
                VALIDATOR.validate(broken)


def test_the_examples_of_an_event_and_of_a_secret_are_what_they_are_called(tmp_path: Path) -> None:
    VALIDATOR.validate(json.loads(block("json", "file.finished")))
    subprocess.run(["bash", "-ec", block("bash", "whsec_")], cwd=tmp_path, check=True)
    assert len(parse_secret((tmp_path / "scan.secret").read_text().strip())) == 32
    types = PAGE.split("| type | when |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `([a-z.]+)`", types, flags=re.MULTILINE) == [kind.value for kind in EventType]
    assert {news.type for news in NEWS} == set(EventType)


def test_the_plan_of_the_retries_is_that_of_the_page() -> None:
    told = re.search(r"again after (.*?), each", PAGE)
    assert told is not None
    delays = [each.replace(" ", "").replace("min", "m") for each in re.split(", | and ", told[1])]
    assert [parse_duration(delay) for delay in delays] == list(RETRY_SECONDS)


def by_python(headers: dict[str, str], body: bytes) -> bool:
    names: dict[str, Any] = {"base64": base64, "hmac": hmac, "time": time}
    exec(block("python", "def is_genuine"), names)
    return bool(names["is_genuine"](headers, body, SECRETS[0]))


def by_node(headers: dict[str, str], body: bytes) -> bool:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node here")
    code = f"""const {{ createHmac }} = require("crypto");
    {block("javascript", "function isGenuine")}
    console.log(isGenuine({json.dumps(headers)}, {json.dumps(body.decode())}, {json.dumps(SECRETS[0])}));"""
    return subprocess.run([node, "-e", code], capture_output=True, check=True).stdout == b"true\n"


@pytest.mark.parametrize("is_genuine", [by_python, by_node])
def test_the_code_of_the_page_tells_what_is_genuine(is_genuine: Callable[[dict[str, str], bytes], bool]) -> None:
    body = '{"a": "ä"}'.encode()
    keys = [parse_secret(secret) for secret in SECRETS]
    headers = signed_headers(keys, "1", datetime.now(UTC), body)
    assert is_genuine(headers, body)
    assert not is_genuine(headers, body + b" ")
    assert not is_genuine(headers | {"webhook-id": "2"}, body)
    assert not is_genuine(signed_headers(keys[1:], "1", datetime.now(UTC), body), body)
    assert not is_genuine(signed_headers(keys, "1", NOW, body), body)


def test_of_every_command_and_action_it_is_said_what_the_trail_tells() -> None:
    assert set(COMMANDS) == set(server_commands())
    words = (PACKAGE / "web" / "pages" / "admin" / "audit" / "words.js").read_text()
    assert [action for action in Action if words.count(f'"audit.{action.value}":') != 2] == [], "in both languages"
    unsaid = [name for name in details_of_acts() if words.count(f'"audit.detail.{name}":') != 2]
    assert unsaid == [], "in both languages"


def test_the_pages_say_everything_in_both_languages_with_the_same_values() -> None:
    text = re.compile(r'^    "([\w.-]+)": (.*?)(?=^    "|^  \})', re.MULTILINE | re.DOTALL)
    for path in (PACKAGE / "web" / "pages").rglob("*words.js"):
        halves = path.read_text().split("\n  zh: {\n")
        english, chinese = (
            {name: set(re.findall(r"\{\w+\}", said)) for name, said in text.findall(half)} for half in halves
        )
        assert english == chinese, path
        assert english or "addWords" not in path.read_text(), path


def details_of_acts() -> set[str]:
    """The names of the details that the services and transactions put into the audit log, but for `from` and `to`."""
    found = set[str]()
    for path in (*(PACKAGE / "database").rglob("*.py"), *(PACKAGE / "service").rglob("*.py")):
        for node in ast.walk(parsed(path.read_text())):
            match node:
                case ast.Call(func=ast.Name("note"), args=[ast.Name("connection"), *_], keywords=keywords):
                    found |= {keyword.arg for keyword in keywords if keyword.arg is not None}
                case ast.Assign(targets=[ast.Name("details")], value=ast.Dict(keys=keys)):
                    found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    assert {"total_space", "lacking"} <= found
    return found
