"""The card's figures are the evaluator's: tables from reports, between markers, and nothing else touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tapetum.evaluate import Answer, Report
from training import card


def report(rates: dict[str, tuple[int, int]], condition: str = "clean") -> dict:
    """As `tapetum evaluate --json` writes it: of each task how many of how many are right; right ones are surer."""
    answers = [
        Answer(
            task=task,
            kind="read" if i % 2 else "word",
            seed=i,
            question="?",
            expected="a",
            got="a" if i < right else "b",
            confidence=0.9 if i < right else 0.4,
        )
        for task, (right, total) in rates.items()
        for i in range(total)
    ]
    written = {condition: Report(tuple(answers)).as_json()}
    whole = {"model": "tapetum-mini", "dtype": "bfloat16", "device": "cpu", "conditions": written}
    return json.loads(json.dumps(whole))


def test_tables_hold_the_figures_of_all_reports() -> None:
    text = card.accuracy(
        [
            report({"clip": (12, 20), "text": (79, 100)}),
            report({"form": (80, 100)}),
            report({"form": (75, 100), "text": (60, 100)}, "jpeg"),
            report({"form": (79, 100)}, "fonts"),
        ]
    )
    assert "greedy, bfloat16 on cpu" in text
    assert "| text | lines of text | 79.0 % | 70.0 to 85.8 | 100 | 80 %: missed |" in text
    assert "| form | forms and tickets | 80.0 % | 71.1 to 86.7 | 100 | 80 %: met |" in text
    assert text.index("| text |") < text.index("| form |") < text.index("| clip |")
    assert "| clip | read 60 (10), word 60 (10) |" in text
    assert "| task | clean | JPEG quality 40 | unseen fonts |" in text
    assert "| text | 79.0 | 60.0 | – |" in text
    assert "- JPEG quality 40: 12.0 points lower on average, at most 19.0 (text): missed" in text
    assert "- unseen fonts: 1.0 points lower on average, at most 1.0 (form): met" in text
    assert "AUROC 1.000, over 220 answers (must: 0.75: met)" in text


def test_a_drop_may_be_met_on_average_alone() -> None:
    clean = report({"text": (90, 100), "form": (90, 100)})
    text = card.accuracy([clean, report({"text": (80, 100), "form": (89, 100)}, "blur")])
    assert "5.5 points lower on average, at most 10.0 (text): met on average" in text


def test_reports_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="two reports hold text under condition clean"):
        card.accuracy([report({"text": (1, 2)}), report({"text": (2, 2)})])
    with pytest.raises(ValueError, match="no report holds condition clean"):
        card.accuracy([report({"text": (1, 2)}, "blur")])


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    before = "# Card\n\n<!-- accuracy -->\nold\n<!-- /accuracy -->\n\nThe rest.\n"
    once = card.filled(before, "new")
    assert once == "# Card\n\n<!-- accuracy -->\n\nnew\n\n<!-- /accuracy -->\n\nThe rest.\n"
    assert card.filled(once, "new") == once
    with pytest.raises(ValueError, match="lacks the lines"):
        card.filled("# Card\n<!-- accuracy -->\n", "new")


def test_the_command_fills_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, task in zip(paths, ("text", "form"), strict=True):
        path.write_text(json.dumps(report({task: (9, 10)})), encoding="utf-8")
    out = tmp_path / "MODEL_CARD.md"
    out.write_text("# Card\n<!-- accuracy -->\n<!-- /accuracy -->\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["card", *map(str, paths), "--out", str(out)])
    card.main()
    assert "| form | forms and tickets | 90.0 % |" in out.read_text(encoding="utf-8")
