"""Run a file of cases against a server: `python -m tests.conformance --cases FILE [--serve "CMD"] [--url URL]`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import click

from tests.conformance.cases import Cases, CasesError, load, unknown_words
from tests.conformance.fleet import Fleet, StartFailed
from tests.conformance.runner import Outcome, outcomes_of, told

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
        for word in unknown_words(cases):
            click.echo(f"{path} speaks of {word}, which nobody knows how to check", err=True)
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
    outcomes = []
    async for outcome in outcomes_of(cases, [cases.BY_ID[case_id] for case_id in ids], fleet):
        outcomes.append(outcome)
        click.echo(told(outcome, path))
    return outcomes


if __name__ == "__main__":
    main()
