"""torchtitan, unchanged, as the trainer of a Hansa replica.

    hansa agent … -- torchrun --nproc-per-node 8 -m hansa.torchtitan

The model's sizes, the batch, H, accumulation, the schedule and the optimiser's settings come from the
run's recipe through the agent; parallelism, compilation and precision are torchtitan's own options and
stay on the command line.
"""
