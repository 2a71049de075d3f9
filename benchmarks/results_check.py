"""Recompute every number under `results/` from the weights that are kept there, where its data is.

python benchmarks/results_check.py [results/NAME ...] what `make results-check` runs

The packs come from `vn data`, in the folder that VN_DATA names. A run whose pack is missing is skipped. Numbers were
measured at the end of the training, in single precision; the kept weights are in half precision, which may move a few
shapes across a boundary.
"""

import argparse
import sys
from pathlib import Path

from vector_neurons.data import DataError
from vector_neurons.training import read_config, results

RESULTS = Path(__file__).parents[1] / "results"
METRICS = {"classification": "accuracy", "segmentation": "category_miou", "reconstruction": "iou"}
TOLERANCE = 0.1  # percentage points


def main() -> int:
    """Print a row for every number; exit code 1 if one differs, 2 if there is no data at all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="*", default=sorted(best.parent for best in RESULTS.glob("*/best")))
    rows = differ = 0
    print(f"{'run':36} {'metric':14} {'rotations':9} {'reported':>8} {'recomputed':>10}")
    for run in options.parse_args().runs:
        metric, reported = METRICS[read_config(run).task], results.read(run)
        try:
            recomputed = results.measure(run, list(reported)).reports
        except DataError as error:
            print(f"{run.name:36} skipped: {error}")
            continue
        for kind, reports in reported.items():
            before, now = reports[0][metric], recomputed[kind][0][metric]
            wrong = abs(before - now) > TOLERANCE
            rows, differ = rows + 1, differ + wrong
            print(f"{run.name:36} {metric:14} {kind:9} {before:8.2f} {now:10.2f}{'  DIFFERS' * wrong}", flush=True)
    print(f"{rows} numbers recomputed, {differ} differ by more than {TOLERANCE}")
    return 2 if not rows else int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
