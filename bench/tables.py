"""Figures as text: a row a figure, a column a contender, ratios to Outhaul. Pure."""

from collections.abc import Callable, Sequence

from bench import contenders
from bench.comparison import Measured, Results, median

_MIB = 1 << 20


def table(description: str, results: Results) -> str:
    """Returns all that was measured, for people."""
    ours = results.contenders[contenders.OUTHAUL]
    head = ["median", *contenders.CONTENDERS]
    rows = [
        ["last command finished -> Secret written", *_row(results, "to_secret")],
        ["object created -> Secret written, without the work", *_row(results, "around")],
        ["memory of the pod (own, peak)", *_row(results, "pod_memory")],
    ]
    alone = [
        ("agent's process started -> first command", _time(median(ours.to_command))),
        ("agent's process, resident (peak)", _memory(median(ours.agent_memory))),
        ("operator, resident, before the runs", _memory(results.operator_before)),
        ("operator, resident, after the runs", _memory(results.operator_after)),
    ]
    return "\n".join(
        [
            "",
            f"Measured on {description}.",
            f"{results.runs} runs of each by turns; the work takes {results.work.seconds:g} s and has five outputs.",
            "Medians, in brackets the lowest and the highest; x is the ratio to Outhaul in this run.",
            "",
            *_aligned([head, *rows]),
            "",
            *_aligned([list(pair) for pair in alone]),
        ]
    )


def _row(results: Results, figure: str) -> list[str]:
    shown = _memory if figure.endswith("memory") else _time
    ours = median(getattr(results.contenders[contenders.OUTHAUL], figure))
    return [_cell(getattr(measured, figure), ours, shown) for measured in _in_order(results)]


def _in_order(results: Results) -> list[Measured]:
    return [results.contenders[one] for one in contenders.CONTENDERS]


def _cell(values: list[float], ours: float | None, shown: Callable[[float | None], str]) -> str:
    middle = median(values)
    if middle is None or ours is None:
        return shown(None)
    return f"{shown(middle)} ({shown(min(values))} to {shown(max(values))}) x{middle / ours:.1f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _memory(size: float | None) -> str:
    return "not measured" if size is None else f"{size / _MIB:.1f} MiB"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
