"""Training: the loop, tasks, objectives, checkpoints, distributed training, distillation, benchmarks."""
