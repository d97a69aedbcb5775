"""Measures what a reader asks first, beside other servers on the same machine: `python -m benchmarks.all`.

Each question is a process of its own, one after the other: one that fails, or takes too long, is told and harms no other.
`comparison.html`, with plots, and `comparison.md` are about this machine; a run of everything also writes the tables of
`docs/performance.md`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from benchmarks import interpreter, report
from benchmarks.all import pages, plots
from benchmarks.all.questions import FULL, QUESTIONS, QUICK, Scale
from benchmarks.ingest import installing, processes
from benchmarks.ingest.places import Places, memory_directory
from benchmarks.tables import Table, failed

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
SECTION = "all"

# In which a question that has to end removes what it has made.
_GRACE_SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a little of each, in some minutes; the docs stay as they are"
    )
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, metavar="NAME", help="; ".join(QUESTIONS))
    parser.add_argument("--into", type=Path, default=Path("build"), help="of the two pages (default: build)")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; needs 10 GiB there")
    parser.add_argument("--question", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # with what it has started
    if arguments.question:
        name, memory, disk, result = arguments.question
        table = QUESTIONS[name].measure(Places(Path(memory), Path(disk)), scale)
        Path(result).write_bytes(msgspec.json.encode(table))
        return
    if not arguments.quick:
        interpreter.choose()
    commit, machine = pages.commit(), report.machine(())
    answers = measure(scale, arguments.only or list(QUESTIONS), arguments.directory, quick=arguments.quick)
    about = f"Of {commit}, on {machine}; {', '.join(installing.versions())}."
    facts = [about, pages.READING]
    arguments.into.mkdir(parents=True, exist_ok=True)
    for kind, text in (("md", pages.markdown(facts, answers)), ("html", plots.html(facts, answers))):
        page = arguments.into / f"comparison.{kind}"
        page.write_text(text)
        print(f"wrote {page}")
    if not arguments.quick and not arguments.only:
        report.write(PAGE, SECTION, pages.section(about, answers))


def measure(scale: Scale, names: list[str], directory: Path | None, *, quick: bool) -> dict[str, Table]:
    """Ask each question in a process of its own."""
    answers = {}
    for name in names:
        with ExitStack() as stack:
            disk, memory = (
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent, ignore_cleanup_errors=True)
                )
                for parent in (directory, memory_directory() or directory)
            )
            began = time.monotonic()
            answers[name] = _ask(name, [memory, disk, f"{disk}/answer"], scale.limit_seconds, quick=quick)
            print(f"\n{name}: {time.monotonic() - began:.0f} s\n\n{answers[name].markdown(spread=True)}", flush=True)
    return answers


def _ask(name: str, paths: list[str], limit_seconds: float, *, quick: bool) -> Table:
    options = ["--quick"] if quick else []
    command = [sys.executable, "-m", "benchmarks.all", *options, "--question", name, *paths]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return failed(name, f"took longer than {limit_seconds:.0f} s")
        except BaseException:
            _end(process)
            raise
        said.seek(0)
        lines = said.read().splitlines()
    if process.returncode:
        return failed(name, " ".join(lines[-1:]).replace("|", "/") or f"ended with {process.returncode}")
    return msgspec.json.decode(Path(paths[-1]).read_bytes(), type=Table)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let it end what it has started; kill what is left of that, such as a server that was not ready yet."""
    with ExitStack() as stack:
        started = []
        for pid in processes.tree([process.pid]):
            with suppress(ProcessLookupError):
                started.append(os.pidfd_open(pid))
                stack.callback(os.close, started[-1])
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        for descriptor in started:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
