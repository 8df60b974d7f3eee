"""Benchmarks: one command a figure, see ``docs/benchmarks.md``."""
