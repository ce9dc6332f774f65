"""What a run says, as Markdown: the goals with their ratios, and the figures of every peer.

The same text goes to the terminal and into the page of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from tapetum.bench.goals import Standing, standings
from tapetum.bench.record import Column, Record, columns

# workload: figures, and what a table calls them
_SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "P10": (("healthy_s", "start to healthy, s"), ("first_token_s", "start to first token, s")),
    "T1": (("ttft_s", "text: TTFT, ms"), ("tpot_s", "text: TPOT, ms")),
    "W1": (("ttft_s", "one picture: TTFT, ms"), ("tpot_s", "one picture: TPOT, ms")),
    "W2": (
        ("requests_per_s", "8 clients: requests/s"),
        ("tokens_per_s", "8 clients: tokens/s"),
        ("ttft_s", "8 clients: TTFT p50, ms"),
        ("ttft_p95_s", "8 clients: TTFT p95, ms"),
    ),
    "W3": (
        ("first_turn_ttft_s", "4 users: TTFT of turn 1, ms"),
        ("later_turns_ttft_s", "4 users: TTFT of turns 2 to 4, ms"),
        ("later_turns_ttft_p95_s", "4 users: the same, p95, ms"),
    ),
    "W4": (
        ("gap_p50_s", "beside large pictures: gap between tokens p50, ms"),
        ("gap_p99_s", "beside large pictures: gap p99, ms"),
        ("gap_max_s", "beside large pictures: longest gap, ms"),
        ("ttft_s", "beside large pictures: TTFT of text p50, ms"),
        ("large_ttft_s", "beside large pictures: TTFT of those, ms"),
    ),
    "W5": (
        ("first_window_ttft_s", "16 frames: TTFT of the first window, ms"),
        ("later_windows_ttft_s", "16 frames: TTFT of later windows, ms"),
    ),
    "P11": (("patches_s", "12 MP JPEG to patches, one core, ms"),),
}


def report(record: Record) -> str:
    found = columns(record.repeats)
    parts = [_goals_table(goals_of(record)), _figures_table(found)]
    parts += [f"{peer} was left out: {why}" for peer, why in record.setup.failed.items()]
    return "\n\n".join(part for part in parts if part)


def goals_of(record: Record) -> tuple[Standing, ...]:
    return standings(columns(record.repeats), record.setup.shape)


def _goals_table(rows: tuple[Standing, ...]) -> str:
    if not rows:
        return ""
    head = ["| goal | what | Tapetum | peer | ratio | must | aim | reached |", "| --- |" + " --- |" * 7]
    return "\n".join([*head, *map(_goal_line, rows)])


def _goal_line(row: Standing) -> str:
    goal = row.goal
    sign, unit = "≥" if goal.is_more_better else "≤", " s" if goal.is_absolute else "x"
    cells = (
        goal.row,
        goal.what,
        f"{row.ours:.3g}",
        f"{goal.peer} not run" if row.theirs is None else f"{row.theirs:.3g} ({goal.peer})",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        f"{sign} {goal.must:g}{unit}",
        f"{sign} {goal.aim:g}{unit}" if goal.aim_s is None else f"≤ {goal.aim_s:g} s",
        row.word if row.is_clean else f"{row.word}, but others were at work",
    )
    return f"| {' | '.join(cells)} |"


def _figures_table(found: Mapping[tuple[str, str], Column]) -> str:
    peers = list(dict.fromkeys(peer for peer, _ in found))
    lines = [f"| | {' | '.join(peers)} |", "| --- |" + " --- |" * len(peers)]
    for workload, figures in _SHOWN.items():
        of_peers = [found.get((peer, workload)) for peer in peers]
        if not any(of_peers):
            continue
        for figure, title in figures:
            cells = [_cell(column, figure, title) for column in of_peers]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        counts = [f"{column.num_clean} of {column.num_repeats}" if column else "-" for column in of_peers]
        lines.append(f"| {workload}: repeats that count | {' | '.join(counts)} |")
    return "\n".join(lines)


def _cell(column: Column | None, figure: str, title: str) -> str:
    if column is None or figure not in column.figures:
        return "-"
    value = column.figures[figure]
    if not title.endswith("ms"):
        return f"{value:.3g}"
    return f"{1000 * value:.3g}" if value < 1 else f"{1000 * value:.0f}"
