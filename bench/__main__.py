"""`python -m bench`: measures Outhaul beside what a user would otherwise do. See docs/performance.md."""

import argparse
import sys
from pathlib import Path

# The cluster of the tests is the cluster of the measurements.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def main() -> None:
    """Reads the command line, measures, and prints."""
    from bench import comparison, contenders, places, tables  # noqa: PLC0415 - found by way of the path above

    parser = argparse.ArgumentParser(prog="bench", description="Measures Outhaul beside a Job that runs kubectl.")
    parser.add_argument("--runs", type=int, default=10, help="how often each contender runs (default 10)")
    parser.add_argument("--bytes", type=int, default=200, help="the size of each of the five outputs (default 200)")
    parser.add_argument(
        "--stand-in", action="store_true", help="measure on the stand-in kubelet, even where a node can run"
    )
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[2.0, 0.0], help="how long the work takes; each is measured (2 0)"
    )
    given = parser.parse_args()
    with places.place(stand_in=given.stand_in) as place:
        comparison.prepare(place)
        for seconds in given.seconds:
            work = contenders.Work(seconds, given.bytes)
            print(tables.table(place.description, comparison.compare(place, work, runs=given.runs)))


if __name__ == "__main__":
    main()
