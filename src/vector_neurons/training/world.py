"""One process or many: under `torchrun` the same program runs on every rank."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._files import first_line
from ..nn.sync import synchronised
from .run import TrainingError
from .settings import SettingsError

LOST = ("closed by peer", "onnection reset", "onnection refused", "roken pipe", "imed out", "ocket")  # a peer is gone


@dataclass(frozen=True)
class World:
    """This process among all: its rank, their number, its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device cannot change

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            x = x.to(self.device, copy=True)
            dist.all_reduce(x)
        return x

    def average_gradients(self, model: nn.Module) -> None:
        """Give every process the mean of all gradients, in one message."""
        if self.size == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = self.sum(torch.cat([g.flatten() for g in gradients])) / self.size
        for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch."""
        return indices.tensor_split(self.size)[self.rank]

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


def expected() -> int:
    """Number of processes that torchrun started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: str = "cpu") -> Iterator[World]:
    """Meet the other processes, if there are any; batch statistics are those of all of them."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise SettingsError(f"--device takes cpu, cuda or cuda:1, got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"--device {device}: there is no CUDA device, or torch was built without CUDA")
    if expected() == 1:
        yield World(device=torch.device(device))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        with synchronised():
            yield World(rank, expected(), own)
            dist.barrier()  # who leaves first takes the meeting place away from the others
    except RuntimeError as error:
        if isinstance(error, TrainingError) or not any(sign in str(error) for sign in LOST):
            raise
        raise TrainingError(f"another process of this training has ended: {first_line(error)}") from error
    finally:
        dist.destroy_process_group()
