"""The process group of a training: one process, or as many as `torchrun` started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._files import first_line
from ..nn.sync import synchronized
from .errors import ConfigError, TrainingError

PEER_LOST = (
    "closed by peer",
    "onnection reset",
    "onnection refused",
    "roken pipe",
    "imed out",
    "ocket",
)  # in messages of gloo and NCCL


@dataclass(frozen=True)
class ProcessGroup:
    """This process's rank, the number of processes, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device cannot change

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            x = x.to(self.device, copy=True)
            dist.all_reduce(x)
        return x

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients over all processes, in one all-reduce."""
        if self.size == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = self.sum(torch.cat([g.flatten() for g in gradients])) / self.size
        for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def shard(self, indices: Tensor) -> Tensor:
        """This process's part of the indices of a batch."""
        return indices.tensor_split(self.size)[self.rank]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


def world_size() -> int:
    """Number of processes that torchrun started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group(device: str = "cpu") -> Iterator[ProcessGroup]:
    """Join the process group of torchrun, if there is one; batch statistics are synchronized over it.

    >>> with vn.training.process_group() as group:
    ...     group.is_main, group.size
    (True, 1)
    """
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"--device takes cpu, cuda or cuda:1, got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: no CUDA device is available, or torch was built without CUDA")
    if world_size() == 1:
        yield ProcessGroup(device=torch.device(device))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        with synchronized():
            yield ProcessGroup(rank, world_size(), own)
            dist.barrier()  # rank 0 holds the store, which the others still need
    except RuntimeError as error:
        if isinstance(error, TrainingError) or not any(sign in str(error) for sign in PEER_LOST):
            raise
        raise TrainingError(f"another process of this training has ended: {first_line(error)}") from error
    finally:
        dist.destroy_process_group()
