"""`python -m vector_neurons ...` is `vn ...`, for torchrun and wherever the command is not on the path."""

from .cli import main

main()
