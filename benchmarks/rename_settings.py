"""Convert the configuration and the metrics of runs of older versions to the names of today.

python benchmarks/rename_settings.py runs/NAME results/NAME ...
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vector_neurons._files import write_file
from vector_neurons.training.log import METRICS
from vector_neurons.training.run import CONFIG, read_config

GROUPS = {"clouds": "data", "machine": "runtime"}
# The older names of settings, by the name of their group today.
SETTINGS: dict[str, dict[str, str]] = {
    "recipe": {
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
    },
}
METRIC_NAMES = {"rate": "lr"}


def rename(saved: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The same values under other names."""
    return {names.get(name, name): value for name, value in saved.items()}


def main() -> None:
    """Convert every run that is named."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="+")
    for run in options.parse_args().runs:
        config = rename(json.loads((run / CONFIG).read_text()), GROUPS)
        config |= {group: rename(config[group], names) for group, names in SETTINGS.items()}
        lines = [json.loads(text) for text in (run / METRICS).read_text().splitlines()]
        write_file(run / CONFIG, json.dumps(config, indent=2) + "\n")
        write_file(run / METRICS, "".join(json.dumps(rename(line, METRIC_NAMES)) + "\n" for line in lines))
        read_config(run)
        print(run)


if __name__ == "__main__":
    main()
