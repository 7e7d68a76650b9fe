"""Benchmarks: ratios against the reference implementation and against peers, measured in one run on one machine.

A new benchmark is one file with a function that measures and one that makes its table, and one line in `BENCHMARKS`.
"""

from benchmarks.attacks import attacks_table, bench_attacks
from benchmarks.benchmark import Benchmark, Setting, Table
from benchmarks.busy import bench_busy, busy_table
from benchmarks.certify import bench_certify, certify_table
from benchmarks.conform import bench_conform, conform_table
from benchmarks.coverage import bench_coverage, coverage_table
from benchmarks.samples import bench_samples, samples_table
from benchmarks.scale import bench_scale, scale_table
from benchmarks.shift import bench_shift, shift_table
from benchmarks.speed import bench_speed, speed_table
from benchmarks.stages import bench_stages, stages_table
from benchmarks.training import bench_training, training_table

__all__ = ["BENCHMARKS", "Benchmark", "Setting", "Table"]

BENCHMARKS = {
    "certify": Benchmark(bench_certify, certify_table),
    "samples": Benchmark(bench_samples, samples_table),
    "shift": Benchmark(bench_shift, shift_table),
    "stages": Benchmark(bench_stages, stages_table),
    "conform": Benchmark(bench_conform, conform_table),
    "coverage": Benchmark(bench_coverage, coverage_table),
    "training": Benchmark(bench_training, training_table),
    "speed": Benchmark(bench_speed, speed_table),
    "attacks": Benchmark(bench_attacks, attacks_table),
    "scale": Benchmark(bench_scale, scale_table),
    "busy": Benchmark(bench_busy, busy_table),
}
"""Every benchmark by the name that the command line knows."""
