"""Evaluations: the paper's benchmarks, baselines and ablations, run on the agent."""
