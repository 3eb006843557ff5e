"""Studies over many runs: published scores, statistics, ablations, sweeps, benchmarks."""
