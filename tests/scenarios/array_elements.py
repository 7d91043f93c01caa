"""A signal is smoothed by a loop over the elements of an array.

As in xcompact3d/Py4Incompact3D pull request 17."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "element by element"
LINE = "smooth"
TWIN = True

if __name__ == "__main__":
    import numpy
    from loop import FIXED, until_over

    Signal = numpy.ndarray

    def smooth(signal: Signal) -> Signal:
        if FIXED:
            return numpy.convolve(signal, numpy.ones(3) / 3, "same")
        out = numpy.zeros(len(signal))
        for i in range(1, len(signal) - 1):
            out[i] = (signal[i - 1] + signal[i] + signal[i + 1]) / 3
        return out

    def normalize(signal: Signal) -> Signal:
        return (signal - signal.mean()) / signal.std()

    for step in until_over():
        normalize(smooth(numpy.random.default_rng(step).random(20000)))
