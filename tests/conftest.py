"""For all tests: `layers` is importable, and runs are repeatable."""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # small tensors, and pytest-xdist already fills the cores
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("repeatable")
