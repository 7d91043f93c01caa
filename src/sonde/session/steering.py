"""Change a live recording from outside, through its control page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from sonde import _core, environ, settings
from sonde.errors import ConfigError, Error, NotAnswering
from sonde.session import files
from sonde.session.folder import Session
from sonde.session.heap_look import SETTING, HeapLook, decline_look, read_look

_LOOK_LOCK_S = 0.05  # the collector must not wait for somebody who is stopped


def _open_page(target: Session) -> _core.Map:
    """Return the control page of a live recording; raise NotAnswering if it has ended."""
    if not target.is_alive():
        raise NotAnswering(f"the recording of process {target.pid} has ended and cannot be changed")
    target.read_control()  # raises if the page is damaged, before anything is written to it
    return target.map_control(writable=True)


def select_alive(targets: list[Session]) -> list[Session]:
    """Return the live ones of several recordings, or the first if none is live, so that using it
    raises the right error."""
    alive = [target for target in targets if target.is_alive()]
    return alive or targets[:1]


def pause(target: Session) -> None:
    """Record no rows until resume(); this holds from the next row on, whatever the job is doing."""
    _core.control_on(_open_page(target), False)


def resume(target: Session) -> None:
    """Record rows again."""
    _core.control_on(_open_page(target), True)


def stop(target: Session, timeout_s: float) -> None:
    """End the recording, not the job; raise NotAnswering if the recording does not end in time."""
    page = _open_page(target)
    _core.control_on(page, False)
    _core.control_ask(page, True)
    _wait(lambda: not target.is_alive(), timeout_s, target.pid, "will stop recording")


def configure(
    target: Session, changes: Mapping[str, object], timeout_s: float
) -> dict[str, settings.Value]:
    """Change settings of a live recording and return all; an invalid one changes nothing."""
    values = settings.read_values(changes)
    fixed = [name for name in values if not settings.list_keys()[name].changeable]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} can only be set at the start: {environ.variable_of(fixed[0])}=…"
        )
    page = _open_page(target)
    epoch = _core.control_ask(page) if _store(target, values) else 0
    _wait(
        lambda: _core.control_get(page)["obeyed"] >= epoch or not target.is_alive(),
        timeout_s,
        target.pid,
        "will apply the change",
    )
    return target.read_config()


def change_look(target: Session, wanted: HeapLook) -> int:
    """Wish that the heap be looked at, or no longer; return the epoch of the wish, or 0 if the user
    has switched the source himself. This does not wait for the job."""
    page = _open_page(target)
    with files.OwnFolder(target.folder) as folder, files.Locked(folder, _LOOK_LOCK_S):
        if read_look(folder).is_declined:
            return 0
        wanted.write(os.path.join(folder, files.HEAP_LOOK))
    return _core.control_ask(page)


def sample_now(target: Session, timeout_s: float) -> bool:
    """Have every thread sampled now, whatever it is doing; return False if that takes too long."""
    return _request(target, "sample", "sampled", timeout_s)


def sample_all(targets: Sequence[Session], timeout_s: float) -> dict[str, str]:
    """Have many processes sampled now, all within one timeout; return what to say of those that
    were not, by folder."""
    pages, complaints = dict[str, tuple[_core.Map, int]](), dict[str, str]()
    for target in targets:
        try:
            page = _open_page(target)
            pages[target.folder] = page, _core.control_request(page, "sample")
        except Error as error:  # reading needs no leave, but asking the process does
            complaints[target.folder] = f"these are the last stacks that it saw: {error}"
    deadline = time.monotonic() + timeout_s
    while pages and time.monotonic() < deadline:
        for folder, (page, number) in list(pages.items()):
            if _core.control_get(page)["sampled"] >= number:
                del pages[folder]
        time.sleep(0.001)
    late = "the sampler did not answer: these are the last stacks it saw"
    return complaints | dict.fromkeys(pages, late)


def inspect(target: Session, timeout_s: float) -> bool:
    """Have locals and tasks written; return False if the job does not get the GIL in time."""
    return _request(target, "inspect", "inspected", timeout_s)


def _request(target: Session, what: str, answer: str, timeout_s: float) -> bool:
    page = _open_page(target)
    number = _core.control_request(page, what)
    deadline = time.monotonic() + timeout_s
    while _core.control_get(page)[answer] < number:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _store(target: Session, values: Mapping[str, settings.Value]) -> bool:
    """Merge values into config.json, and return whether that changed anything."""
    try:
        # Locked against other tools, and against the job: see source_switch.py.
        with files.OwnFolder(target.folder) as folder, files.Locked(folder, files.LOCK_S):
            before = target.read_config()
            after = {**before, **values}
            if after != before:
                files.write_checked(os.path.join(folder, files.CONFIG), dict(after))
            # Afterwards: whoever switches on what is on for a look must not see it go off between.
            is_news = SETTING in values and decline_look(folder)
    except OSError as error:
        raise Error(f"{target.path(files.CONFIG)}: {error.strerror}") from None
    return is_news or after != before


def _wait(done: Callable[[], bool], timeout_s: float, pid: int, what: str) -> None:
    deadline, nap = time.monotonic() + timeout_s, 0.001
    while not done():
        if time.monotonic() > deadline:
            raise NotAnswering(
                f"process {pid} has not reached a safe point in {timeout_s:g} s "
                f"(its main thread may be in one long C call); it {what} when it does"
            )
        time.sleep(nap)
        nap = min(nap * 2, 0.1)
