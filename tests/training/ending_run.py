"""Run by test_distributed.py under torchrun: `regard ...`, of which process 1 kills itself in step 5, but not again.

torchrun --nproc-per-node 2 --max-restarts 1 ending_run.py WORDS...
"""

import os

from regard.cli import main
from tests.training.test_distributed import kill_in_step_5

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    kill_in_step_5()
main()
