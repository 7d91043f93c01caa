"""The functions and classes of `mxnet.profiler`, built on a recording."""
