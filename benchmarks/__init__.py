"""Benchmarks, as ratios against the plain tool run side by side in the same run."""
