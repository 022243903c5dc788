"""The meter, the guard, the profiler and its report."""
