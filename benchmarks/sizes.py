"""Validation metrics of a run at other numbers of points than it was trained with.

python benchmarks/sizes.py RUN 256 512 1024
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import vector_neurons as vn
from vector_neurons.training import evaluation, factory, read_config


def main() -> None:
    """Print a row for each number of points, on validation shapes in the rotations of the training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("points", type=int, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config, model = read_config(options.run), vn.load(options.run).float()
    (data,) = evaluation.open_datasets(config, ("val",), evaluation.ProcessGroup())
    task = factory.build_task(config, data)
    for points in options.points:
        resized = replace(config, data=replace(config.data, points=points))
        counts = evaluation.measure(model, task, data, resized, config.protocol.train_rotations)
        print(
            f"{points:5} points: {task.metric} {evaluation.compute_metrics(task, counts)[task.metric]:.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    vn.kernels.prefer_built()
    main()
