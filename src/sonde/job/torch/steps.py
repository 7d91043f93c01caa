"""When a step of training or inference ends, and who wants to know."""

from __future__ import annotations

from sonde import _core

# What can end a step, the surest last.
ROOT = "root"  # the model that began the step is called again, and nothing else ends steps
OPTIMIZER = "optimizer"  # an optimizer has made its step
USER = "user"  # sonde.step()
END = "end"  # the recording is over

# A step that has just ended, and all of them: `steps` counts the steps of this process; each
# listener is called in the thread that ends one, right after its end, and must be quick and raise
# nothing: wrap it in `context.guard`.
#
# Once the user has said where a step ends, optimizers and models end none any more: two of them
# may be in one step, or none. But whoever has said it while training may not say it while the
# model is evaluated afterwards, and that must not become one endless step. So when far more
# ends of other kinds came than ever between two words of the user, they count again, until the
# next such word. Between optimizers and models whoever reports the end of one decides.
#
# In C, because every step passes here: _core/torch/.
Step = _core.Step
Steps = _core.Steps
steps = Steps()


def step() -> int | None:
    """Say that a step of training or inference is over.

    sonde finds the ends of steps by itself, at optimizers and models. Once you call this, nothing
    else ends steps, unless you stop calling it. Returns the number of the step that is over, as in
    python.torch_step; None if the program is not being recorded."""
    return steps.end(USER)
