"""Figures as text. Pure."""

import statistics

from bench.scale.measuring import Results, Runs, Start
from bench.scale.plain import Plain

_MIB = 1 << 20


def table(results: Results) -> str:
    """Returns all that was measured, for people."""
    loads = ", ".join(f"{one:.1f}" for one in results.load)
    lines = ["", f"One operator on one core; load average of the machine after each step: {loads}."]
    lines += ["", "The API server alone, the same writes from a plain client:", *map(_plain, results.plain)]
    for start, batch in zip(results.starts, results.batches, strict=True):
        lines += ["", f"A start with {start.idle} idle Installations:", *_start(start, results.empty)]
        lines += [f"{batch.count} runs beside them:", *_runs(batch)]
    few, many = results.batches
    lines += [
        "",
        f"Beside {results.sizes.many} idle ones to beside {results.sizes.few}, a run takes:",
        f"  processor time of the operator x{_each(many) / _each(few):.2f}",
        f"  processor time of API server and etcd x{_server(many) / _server(few):.2f}",
        f"  requests x{_asked(many) / _asked(few):.2f}",
    ]
    if results.burst is not None:
        alone = sum(one.runs for one in results.plain) / sum(one.seconds for one in results.plain)
        share = results.burst.per_second / alone
        lines += ["", f"{results.burst.count} runs at once:", *_runs(results.burst)]
        lines += [f"  to what the API server takes alone: x{share:.2f}"]
        lines += [
            f"    {count / results.burst.count:6.2f} {what}" for what, count in results.burst.requests.most_common()
        ]
    if results.interrupted is not None:
        first, rest = results.interrupted
        lines += ["", f"As many at once, the operator is killed at a third; the other {rest.count}, from the start on:"]
        lines += [f"  the first is ready after {first:.1f} s, the last after {rest.seconds:.1f} s", *_runs(rest)]
    return "\n".join(lines)


def _plain(one: Plain) -> str:
    each = 1000 * one.server.cpu / one.runs
    return f"  {one.runs} runs: {one.per_second:.1f} runs/s, {each:.1f} ms of API server and etcd a run"


def _start(one: Start, empty: int) -> list[str]:
    memory, less, each = one.memory / _MIB, empty / _MIB, 1000 * (one.memory - empty) / one.idle / _MIB
    quiet = one.to_quiet
    return [
        f"  ready after {one.to_ready:.1f} s; a new Installation is installed after {one.to_run:.1f} s",
        f"  all looked at after {quiet.at:.0f} s: {quiet.cpu:.1f} s of processor time, {one.requests.total()} requests",
        f"  resident: {memory:.0f} MiB, without objects {less:.0f}: {each:.1f} MiB for 1,000 with a run each",
    ]


def _runs(one: Runs) -> list[str]:
    centiles = statistics.quantiles(one.to_secret, n=100, method="inclusive")
    ours, theirs, asked = 1000 * _each(one), 1000 * _server(one), _asked(one)
    return [
        f"  {one.per_second:.1f} runs/s; the operator has {100 * one.operator.cpu / one.seconds:.0f} % of a core",
        f"  commands done -> Secret written: p50 {centiles[49]:.2f} s, p99 {centiles[98]:.2f} s",
        f"  a run: {ours:.1f} ms of the operator, {theirs:.1f} ms of API server and etcd, {asked:.2f} requests",
    ]


def _each(one: Runs) -> float:
    return one.operator.cpu / one.count


def _server(one: Runs) -> float:
    return one.server.cpu / one.count


def _asked(one: Runs) -> float:
    return one.requests.total() / one.count
