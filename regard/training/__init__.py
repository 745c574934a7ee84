"""Training: the loop, tasks, objectives, checkpoints, distributed training, distillation, benchmarks.

In reading order:

1. `recipe`: the settings of a run. `run`: begin or resume a run in its folder (`run_folder`, `prepared_data`).
2. `task`: what the loop needs to know about what it trains. `tasks`: translation, NAT, classification and CroCo, and
   the `SimpleTask` for tasks of your own. `objectives`: the losses.
3. `loop`: one step after another. `parallelism`: the gradients of a step, on one device or several (`distributed`);
   `cuda_graph`: captured steps; `optim`: the optimizer, the learning rate and skipped steps.
4. `state`: everything that a checkpoint contains. `checkpoint` and `saving`: how it is written.
5. `progress`, `metrics_log` and `plot`: what a run prints, logs and draws.
"""
