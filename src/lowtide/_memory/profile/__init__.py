"""The profiler: a recording of a tree of processes, its verdict, and the files and pages made from it."""
