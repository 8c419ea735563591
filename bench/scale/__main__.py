"""`python -m bench.scale`: many objects and many runs at once, on hollow agents. See docs/performance.md."""

import argparse
import asyncio
import sys
from pathlib import Path

# The cluster of the tests is the cluster of the measurements.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


def main() -> None:
    """Reads the command line, measures, and prints."""
    from bench.scale import measuring, places, tables  # noqa: PLC0415 - found by way of the path above

    parser = argparse.ArgumentParser(prog="bench.scale", description="Measures the operator under load.")
    parser.add_argument("--few", type=int, default=1000, help="idle Installations at first (default 1000)")
    parser.add_argument("--many", type=int, default=5000, help="idle Installations later (default 5000)")
    parser.add_argument("--batch", type=int, default=100, help="runs by which the two are compared (default 100)")
    parser.add_argument("--burst", type=int, default=1000, help="Installations created at once (default 1000)")
    parser.add_argument(
        "--settle", type=float, default=125, help="how long the operator is left alone after a start (default 125 s)"
    )
    parser.add_argument("--core", type=int, default=0, help="the core that the operator has (default 0)")
    given = parser.parse_args()
    with places.place(given.core) as place:
        sizes = measuring.Sizes(given.few, given.many, given.batch, given.burst, given.settle)
        print(tables.table(asyncio.run(measuring.measure(place, sizes))))


if __name__ == "__main__":
    main()
