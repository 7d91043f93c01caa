"""The ends of steps of training or inference, and the listeners that are called at them."""

from __future__ import annotations

from sonde import _core

# What can end a step, from the least to the most reliable.
ROOT = "root"  # the model that began the step is called again, and nothing else ends steps
OPTIMIZER = "optimizer"  # an optimizer has made its step
USER = "user"  # the program called sonde.step()
END = "end"  # the recording has ended

# `Step` is a step that has just ended. `steps` counts the steps of this process, and calls each
# listener in the thread that ends a step, right after its end. A listener must be quick and raise
# nothing: wrap it in `context.guard`.
#
# Once the user has called sonde.step(), optimizers and models no longer end steps, because a step
# may contain several of them or none. But a program that calls it while training may not call it
# while it evaluates the model afterwards, which must not become one endless step. So when far more
# ends of other kinds come than ever came between two calls of the user, they count again until the
# next call. Between optimizers and models, an optimizer's step decides.
#
# This is in C, in _core/torch/, because it runs at every step.
Step = _core.Step
Steps = _core.Steps
steps = Steps()


class EndedStep(int):
    """The number of a step that has ended. As a block, `with sonde.step():`, it does no more."""

    def __enter__(self) -> EndedStep:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def step() -> EndedStep:
    """End a step of training or inference.

    sonde finds the ends of steps by itself, from optimizers and models. Once you call this, nothing
    else ends steps, unless you stop calling it. Call it at the end of the loop's body, or put the
    body into `with sonde.step():`, where each block ends the step before it. Return the number of
    the step that has ended, as in python.torch_step, or -1 if the program is not being recorded."""
    number = steps.end(USER)
    return EndedStep(-1 if number is None else number)
