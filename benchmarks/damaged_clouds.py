"""Accuracy of classifiers on damaged clouds of ModelNet40: noise, outliers, one side, uneven density, parts cut off.

    python benchmarks/damaged_clouds.py results/NAME ...                  validation shapes, on which to choose
    python benchmarks/damaged_clouds.py results/NAME ... --split test

Every cloud is damaged, put into a random pose and given to `vn.predict` as a file would be. Accuracy is that of the
most likely class, before "none of these"; a cloud that is refused as too small counts as wrong.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

import vector_neurons as vn
from vector_neurons.data import Cloud, ModelNet40
from vector_neurons.data.augment import Jitter, Occlude, Outliers, Subset
from vector_neurons.data.seeding import derive_seed
from vector_neurons.inference.predict import find_model, predict_each
from vector_neurons.mesh import MeshError
from vector_neurons.training.batches import evaluation_rotation

Damage = Callable[[Cloud, torch.Generator], Cloud]


def uneven(cloud: Cloud, generator: torch.Generator) -> Cloud:
    """Half of the points, drawn up to 20 times as densely on one side as on the other."""
    position = along(cloud, generator)
    kept = torch.multinomial((3 * position).exp(), len(position) // 2, generator=generator)
    return Cloud(cloud.points[kept])


def cut(cloud: Cloud, generator: torch.Generator) -> Cloud:
    """Without the quarter of the points that lies farthest in a random direction."""
    position = along(cloud, generator)
    return Cloud(cloud.points[position <= position.quantile(0.75)])


def along(cloud: Cloud, generator: torch.Generator) -> Tensor:
    """Positions of the points in a random direction, from 0 to 1."""
    position = cloud.points @ torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    return (position - position.min()) / (position.max() - position.min())


DAMAGES: Mapping[str, Damage] = {
    "none": lambda cloud, _: cloud,
    "256 points": Subset(256),
    "noise 0.02": Jitter(0.02, clip=None),
    "2 % outliers": Outliers(0.02),
    "one side": Occlude(),
    "uneven density": uneven,
    "a quarter cut off": cut,
}


def accuracy(model: str, data: ModelNet40, damage: Damage) -> float:
    """Percentage of the shapes whose most likely class is the right one."""

    def clouds() -> Iterator[Tensor]:
        for i in range(len(data)):
            generator = torch.Generator().manual_seed(derive_seed("damage", i))
            yield damage(data[i], generator).points @ evaluation_rotation("SO3", i, 0).mT

    answers = predict_each(find_model(model), clouds())
    found = [None if isinstance(one, MeshError) else one.top(1)[0][0] for one in answers]
    return 100 * sum(data.classes[y] == name for y, name in zip(data.labels.tolist(), found, strict=True)) / len(data)


def main() -> None:
    """Print a row for each damage, a column for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="runs, saved models or names of vn.pretrained")
    parser.add_argument("--split", default="val", choices=("val", "test"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = ModelNet40(options.split, points=1024)
    print(f"| {len(data):,} {options.split} shapes | {' | '.join(options.models)} |")
    print("|---" * (len(options.models) + 1) + "|")
    for name, damage in DAMAGES.items():
        cells = [f"{accuracy(model, data, damage):.1f}" for model in options.models]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    vn.kernels.prefer_built()
    main()
