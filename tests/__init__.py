"""The tests. Each of their processes computes with one thread, since pytest-xdist keeps the cores busy by itself."""

import os

# Read when a library is loaded, so it must be here. `torch.set_num_threads` would reach torch alone: the threads of
# CTranslate2, left to itself, wait for each other in loops that take the processor from everyone else.
os.environ["OMP_NUM_THREADS"] = "1"
