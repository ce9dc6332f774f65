"""Makes docs/performance.md and its charts from the runs that docs/performance.json keeps.

python tools/performance.py RUN.json...   keep these runs of `tapetum bench peers` in place of the last, and write
python tools/performance.py               write again
python tools/performance.py --check       end with an error where the page is not what the runs say
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tapetum.bench.chart import chart
from tapetum.bench.record import Record, read_record, record_of
from tapetum.bench.report import goals_of, report

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """# Performance

Made by `tools/performance.py` from the last runs of `tapetum bench peers`; do not edit. Repeats go round the servers in
turn, with the same checkpoint, threads and questions. A repeat counts when other processes used at most 0.1 core
meanwhile; a value is the median of those that count, or of all where none does, which the table says. Ratios are
Tapetum's figure over the peer's. The checkpoints have true shapes and random weights, so nothing here tells of
quality, and guessing tokens ahead is off.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    arguments = parser.parse_args()
    kept = arguments.docs / "performance.json"
    if arguments.runs:
        runs = [asdict(read_record(path)) for path in arguments.runs]
        kept.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    records = [record_of(run, str(kept)) for run in json.loads(kept.read_text(encoding="utf-8"))]
    files = pages(records)
    if arguments.check:
        wrong = [name for name, text in files.items() if _text(arguments.docs / name) != text]
        if wrong:
            print(f"{', '.join(wrong)}: not what {kept.name} says; run tools/performance.py")
        return 1 if wrong else 0
    for name, text in files.items():
        (arguments.docs / name).write_text(text, encoding="utf-8")
    return 0


def pages(records: list[Record]) -> dict[str, str]:
    """The page and a chart for each run that has goals, by file name."""
    parts, files = [HEAD], {}
    for record in records:
        setup = record.setup
        parts.append(
            f"## {setup.model}\n\n{setup.at}, Tapetum {setup.version}, {setup.threads} threads of "
            f"{setup.num_cores} cores, {setup.processor}.\n"
        )
        rows = goals_of(record)
        if any(row.ratio for row in rows):
            name = f"performance-{setup.model}.svg"
            files[name] = chart(rows)
            parts.append(f"![Tapetum beside its peers]({name})\n")
        parts.append(report(record) + "\n")
        commands = "\n".join(f"{label}: {command}" for label, command in setup.commands.items())
        parts.append(f"Started as\n\n```\n{commands}\n```\n")
    return {"performance.md": "\n".join(parts), **files}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
