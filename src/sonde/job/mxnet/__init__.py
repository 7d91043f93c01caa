"""The calls and objects of `mxnet.profiler`, on top of a recording."""
