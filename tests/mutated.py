"""Deliberately wrong native operators, to test that checks of the native backend find them."""

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def mutated(name, change):
    """Within the block, the C++ operator `vector_neurons::name` returns `change(result, *arguments)`.

    Everything else stays native: layers dispatch to the operator as usual, and its registered gradient is the right
    one. Needs the native backend in this process (`"native" in kernels.available()`), and a check that runs in this
    process, as the fixture `vn_command` does:

        with kernels.using("native"), mutated("norm_leaky_relu", lambda out, *_: out.roll(1, -2)):
            code, out, err = vn_command("check", ...)

    Operators and arguments are those of `vector_neurons.kernels.ops.SCHEMAS`.
    """
    kernel = torch.library.get_kernel(f"vector_neurons::{name}", "CPU")
    library = torch.library.Library("vector_neurons", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the override
        library.impl(
            name, lambda keys, *arguments: change(kernel.call_boxed(keys, *arguments), *arguments), "CPU",
            with_keyset=True, allow_override=True,
        )  # fmt: skip
    try:
        yield
    finally:
        library._destroy()  # the C++ implementation is in force again


# Mutations that break the symmetry: by operator, and a layer that uses it.
NOT_EQUIVARIANT = {
    "norm_leaky_relu": lambda out, *_: out.roll(1, -2),  # x, y, z exchanged
    "project": lambda out, *_: out.roll(1, -2),
    "frame_pool": lambda out, x, *_: (out[0] + x.amax((1, 2, 3), keepdim=True)[..., 0], *out[1:]),
    "knn_canonical": lambda out, x, present, k, *_: x[..., 0].argsort(1)[:, None, :k].expand_as(out).contiguous(),
    "farthest_canonical": lambda out, x, *_: x[:, 0].argsort(1)[:, : out.shape[1]].contiguous(),
    "frame_project": lambda out, x, *_: out + x,
    "frame_linear": lambda out, offset, *_: out + offset[..., :1],
    "frame_mean": lambda out, *_: out.roll(1, -2),
}
