"""The tests. Each process uses one thread, since pytest-xdist runs one process per core."""

import os

# Set before any library is loaded. `torch.set_num_threads` would affect torch only, while the threads of CTranslate2
# would spin and slow down all other processes.
os.environ["OMP_NUM_THREADS"] = "1"
