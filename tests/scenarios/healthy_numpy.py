"""A program that computes with large matrices: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import numpy
    from loop import until_over

    matrix = numpy.random.default_rng(0).random((400, 400))
    for _step in until_over():
        matrix = matrix @ matrix.T
        matrix /= numpy.abs(matrix).max()
