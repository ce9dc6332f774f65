"""Run a file of cases against a server: `python -m tests.conformance --cases FILE [--serve "CMD"] [--url URL]`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import click

from tests.conformance.cases import Cases, CasesError, load
from tests.conformance.faults.pictures import enc, scene
from tests.conformance.fleet import Fleet, StartFailed
from tests.conformance.runner import Outcome, Runner

_OURS = shlex.join([sys.executable, "-m", "tapetum", "serve"])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--cases", "path", type=_FILE, required=True, help="A file such as tests/conformance/public_faults.py."
)
@click.option(
    "--serve", "command", help=f"Starts a server; flags are added.  [default without --url: {_OURS}]"
)
@click.option("--url", help="A server that runs; cases that start, configure or signal one are skipped.")
@click.option("--only", help="Ids with commas between.")
def main(path: Path, command: str | None, url: str | None, only: str | None) -> None:
    """Ask a server what public reports say that servers get wrong."""
    try:
        cases = load(path)
        ids = only.split(",") if only else [case.id for case in cases.CASES]
        unknown = [case_id for case_id in ids if case_id not in cases.BY_ID]
        if unknown:
            raise click.UsageError(f"{path} has no case {', '.join(unknown)}")
        words = shlex.split(command or _OURS) if command or not url else None
        outcomes = asyncio.run(_run(cases, ids, Fleet(words, url), path))
    except (CasesError, StartFailed) as error:
        raise click.ClickException(str(error)) from error
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = {verdict: verdicts.count(verdict) for verdict in ("passed", "failed", "skipped")}
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


async def _run(cases: Cases, ids: list[str], fleet: Fleet, path: Path) -> list[Outcome]:
    runner = Runner(cases, fleet, enc(scene(112, 84)))
    outcomes = []
    try:
        for plan in await runner.plan([cases.BY_ID[case_id] for case_id in ids]):
            outcomes.append(await runner.run(plan))
            click.echo(told(outcomes[-1], path))
    finally:
        await runner.close()
    return outcomes


def told(outcome: Outcome, path: Path) -> str:
    """One line for each case; where it failed also why, and how to run it alone."""
    case = outcome.case
    line = f"{outcome.verdict:<7} {case.id:<9} {outcome.seconds:6.1f} s  {case.title}"
    if outcome.verdict == "skipped":
        return f"{line}: {outcome.problems[0]}"
    if outcome.verdict == "failed":
        alone = f"python -m tests.conformance --cases {path} --only {case.id}"
        return "\n".join(
            [line, *(f"        {problem}" for problem in outcome.problems), f"        alone: {alone}"]
        )
    return line


if __name__ == "__main__":
    main()
