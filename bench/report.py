"""Figures, their ratios, and their presentation: a table and a JSON file.

The results file: {"begun": ISO time, "command", "machine": {...}, "neighbour_cores": [one per round],
"figures": [{"name", "unit", "more_is_better", "bound", "verdict", "values": {system: [one per round]},
"medians": {system: value}, "ratios": [one per round], "ratio": median}]}. A ratio is Mainstem's value over
Apache Kafka's of the same round, also where less is better.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from mainstem_broker.compiled import are_made

OURS: Final = "Mainstem"
THEIRS: Final = "Apache Kafka"


class Verdict(Enum):
    """Of a figure against its bound."""

    NONE = ""
    """There is no bound, or nothing to compare with."""
    PASS = "pass"
    LEVEL = "level"
    """The rounds disagree: no difference that this machine can tell."""
    FAIL = "FAIL"


Samples = dict[str, list[float]]
"""Of one system: values by key, one per round."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report; `bound` is what the ratio must reach, or not exceed where less is better."""

    name: str
    key: str
    unit: str
    more_is_better: bool
    bound: float | None
    samples: Mapping[str, Samples]

    def values(self, system: str) -> list[float]:
        return self.samples.get(system, {}).get(self.key, [])

    def median(self, system: str) -> float | None:
        values = self.values(system)
        return statistics.median(values) if values else None

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, round by round; a value of 0 (under one tick of CPU time) gives none."""
        pairs = zip(self.values(OURS), self.values(THEIRS), strict=False)
        return [ours / theirs for ours, theirs in pairs if theirs]

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def verdict(self) -> Verdict:
        """On the median ratio; LEVEL when that misses the bound and yet some round reaches it."""
        if self.bound is None or self.ratio is None:
            return Verdict.NONE
        if self._reaches(self.ratio):
            return Verdict.PASS
        return Verdict.LEVEL if any(map(self._reaches, self.ratios)) else Verdict.FAIL

    def _reaches(self, ratio: float) -> bool:
        assert self.bound is not None
        return ratio >= self.bound if self.more_is_better else ratio <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "bound": self.bound,
            "verdict": self.verdict.value,
            "values": {system: self.values(system) for system in self.samples if self.values(system)},
            "medians": {system: self.median(system) for system in self.samples if self.values(system)},
            "ratios": self.ratios,
            "ratio": self.ratio,
        }


def table(figures: Sequence[Figure]) -> str:
    """The figures as text for people, one a line."""
    rows: list[tuple[str, ...]] = [("", OURS, THEIRS, "", "ratio", "rounds", "wanted", "")]
    rows += [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in lines)


def _row(figure: Figure) -> tuple[str, ...]:
    ratios = figure.ratios
    relation = ">=" if figure.more_is_better else "<="
    return (
        figure.name,
        _number(figure.median(OURS)),
        _number(figure.median(THEIRS)),
        figure.unit,
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if not ratios else f"{min(ratios):.2f}-{max(ratios):.2f}",
        "" if figure.bound is None else f"{relation} {figure.bound:.1f}",
        figure.verdict.value,
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column in (0, 3) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> dict[str, object]:
    """What the figures were made on; no names of hosts or folders."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_kb / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiled": are_made(),
    }


def write_json(
    path: Path, figures: Sequence[Figure], *, begun: str, command: str, neighbour_cores: Sequence[float]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "begun": begun,
        "command": command,
        "machine": machine(),
        "neighbour_cores": neighbour_cores,
        "figures": [figure.as_json() for figure in figures],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
