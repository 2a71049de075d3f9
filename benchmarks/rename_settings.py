"""Give the settings and metrics of runs that were begun under older names their names of today.

python benchmarks/rename_settings.py runs/NAME results/NAME ...
"""

import argparse
import json
from pathlib import Path

from vector_neurons._files import write_file
from vector_neurons.training.log import METRICS
from vector_neurons.training.run import CONFIG, read_settings

RECIPE = {
    "batch": "batch_size",
    "optimiser": "optimizer",
    "rate": "lr",
    "final_rate": "final_lr",
    "warm_up": "warmup",
    "every": "step_size",
    "factor": "gamma",
    "decay": "weight_decay",
    "smoothing": "label_smoothing",
    "clip": "clip_grad_norm",
    "stretch": "anisotropic_scale",
    "zoom": "scale",
    "early_share": "early_fraction",
}


def main() -> None:
    """Convert every run that is named."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="+")
    for run in options.parse_args().runs:
        config = json.loads((run / CONFIG).read_text())
        config["recipe"] = {RECIPE.get(name, name): value for name, value in config["recipe"].items()}
        lines = [json.loads(text) for text in (run / METRICS).read_text().splitlines()]
        renamed = [{"lr" if name == "rate" else name: value for name, value in line.items()} for line in lines]
        write_file(run / CONFIG, json.dumps(config, indent=2) + "\n")
        write_file(run / METRICS, "".join(json.dumps(line) + "\n" for line in renamed))
        read_settings(run)
        print(run)


if __name__ == "__main__":
    main()
