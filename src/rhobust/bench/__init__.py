"""Benchmarks: ratios against the textbook way, measured in one run on one machine."""

from .training import bench_training as bench_training
