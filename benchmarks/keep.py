"""Keep a finished run among the results: config, metrics, curve, test, and the best weights in half precision.

python benchmarks/keep.py runs/NAME results/NAME            then: vn evaluate results/NAME
python benchmarks/keep.py runs/NAME results/NAME --pretrained reconstruction       ships it with the package, too
python benchmarks/keep.py runs/NAME results/experiments/NAME --no-weights
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from vector_neurons.models import store
from vector_neurons.tasks import Classification, Reconstruction, Segmentation
from vector_neurons.training import checkpoint, read_config, results
from vector_neurons.training.log import CURVE, METRICS, curves, read_metrics
from vector_neurons.training.run import write_config

PRETRAINED = Path(__file__).parents[1] / "src" / "vector_neurons" / "pretrained"
METRIC = {task.__name__.lower(): task.metric for task in (Classification, Segmentation, Reconstruction)}


def main() -> None:
    """Copy what is worth keeping."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--pretrained", help="name under which `vn.pretrained` is to find the model")
    options.add_argument("--no-weights", action="store_true", help="of a small experiment: numbers only")
    given = options.parse_args()
    config = read_config(given.run)
    # Where the data was is nobody else's business, and VN_DATA says where it is there.
    config = replace(config, data=replace(config.data, data_root=None))
    if config.recipe.init is not None:
        config = replace(config, recipe=replace(config.recipe, init=Path(config.recipe.init).name))
    given.out.mkdir(parents=True, exist_ok=True)
    write_config(given.out, config)
    for name in (METRICS, results.TEST):
        shutil.copyfile(given.run / name, given.out / name)
    if given.no_weights:
        return
    # Drawn here: where a run was trained, matplotlib may be missing.
    curves(read_metrics(given.run), METRIC[config.task]).savefig(given.out / CURVE, dpi=90)
    model = store.load(given.run)
    model.half()
    checkpoint.write(given.out / "best", model, model.metadata)
    if given.pretrained:
        store.save(model, PRETRAINED / given.pretrained)
    print(f"{given.out}: {sum(file.stat().st_size for file in given.out.rglob('*')) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
