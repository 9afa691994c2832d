"""The curious server (the paper's Algorithm 2): what it recovers from an `Observation`, and from nothing else."""
