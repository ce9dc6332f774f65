"""The tables of docs/models.md are what code, config files and measurements say; a page that is not is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.models import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"


def test_a_page_is_written_and_a_change_of_it_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "models.md"
    page.write_text(PAGE.read_text())
    assert main(["--page", str(page)]) == 0
    text = page.read_text()
    assert (
        "| Gemma 3 | `gemma3` | text, pictures | SigLIP | pooling, linear | Gemma 3, windows | yes |" in text
    )
    assert "| qwen2-vl-2b-instruct | `qwen2_vl` | 2.21 B | 4.12 GiB | 28 KiB | 32,768 | 2,691 |" in text
    assert main(["--check", "--page", str(page)]) == 0
    page.write_text(text.replace("2.21 B", "2.22 B"))
    assert main(["--check", "--page", str(page)]) == 1
    assert capsys.readouterr().out == "models.md: not what code and tests say; run tools/models.py\n"


@pytest.mark.parametrize("mark", ["<!-- parity: made by tools/models.py -->", "<!-- checkpoints: end -->"])
def test_a_page_without_its_marks_is_refused(tmp_path: Path, mark: str) -> None:
    page = tmp_path / "models.md"
    page.write_text(PAGE.read_text().replace(mark, ""))
    with pytest.raises(SystemExit, match="the page lacks the marks of"):
        main(["--page", str(page)])
