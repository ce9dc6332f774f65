"""The documents name files that exist, and tell all flags and errors that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapetum.cli import serve
from tapetum.core.errors import ConfigError, TapetumError
from tapetum.server import errors  # noqa: F401 - its errors are told too

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)")
QUOTED = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|md|json|toml|txt|yaml))`")  # a folder, a name and an ending


def exists(name: str, page: Path) -> bool:
    """Relative to the page, the repository or the package, whose prefix the documents leave out."""
    return any((folder / name).exists() for folder in (page.parent, ROOT, ROOT / "src" / "tapetum"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path) -> None:
    names = QUOTED.findall(page.read_text(encoding="utf-8"))
    assert [name for name in names if not exists(name, page)] == []


def test_every_decision_has_its_number_and_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    notes = [note.name for note in folder.glob("[0-9]*.md")]
    assert notes
    assert [note for note in notes if f"({note})" not in index] == []
    assert len({note[:3] for note in notes}) == len(notes)


def test_the_table_of_techniques_says_where_what_is_done_lives() -> None:
    rows = [
        line.split("|") for line in (ROOT / "docs" / "techniques.md").read_text(encoding="utf-8").splitlines()
    ]
    states = {row[1].strip(): [cell.strip() for cell in row[2:5]] for row in rows if len(row) == 6}
    done = {name: cells for name, cells in states.items() if cells[0] in ("done", "partly")}
    assert len(done) > 20
    assert {cells[0] for cells in states.values()} <= {"done", "partly", "not yet", "state", "---"}
    for name, (_, where, shown) in done.items():
        assert QUOTED.search(where), f"{name}: where?"
        assert QUOTED.search(shown), f"{name}: shown by what?"


def test_every_flag_of_the_server_is_told() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    flags = [parameter.opts[0] for parameter in serve.params if parameter.opts[0].startswith("--")]
    assert len(flags) > 30
    assert [flag for flag in flags if f"`{flag}`" not in page] == []


def test_every_error_of_the_server_is_told_with_its_status() -> None:
    rows = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    told = [error for error in raised(TapetumError) if not issubclass(error, ConfigError)]
    assert len(told) > 10
    for error in told:
        assert any(f"`{error.code}`" in row and str(error.http_status) in row for row in rows), error


def raised(error: type[TapetumError]) -> Iterator[type[TapetumError]]:
    """All kinds of an error but itself."""
    for kind in error.__subclasses__():
        yield kind
        yield from raised(kind)
