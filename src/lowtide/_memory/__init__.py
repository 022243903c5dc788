"""Measuring and limiting memory: gauges, the watch, the profiler and its report."""
