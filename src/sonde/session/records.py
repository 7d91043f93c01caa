"""The contents of each JSON file of a session; types are checked once, when a file is read.

A record is a class whose annotations are the keys of the file. A key with a default may be missing
in the file; a key that the class does not know is ignored."""

from __future__ import annotations

from sonde import settings
from sonde.errors import Damaged
from sonde.session import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options: object) -> object:
        """Tell the type checker the arguments of each record; do nothing at run time."""
        return lambda kind: kind


_kinds: dict[str, type[Record]] = {}


@dataclass_transform(kw_only_default=True)
class Record:
    """The contents of one JSON file, or of one object in it."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    def __init_subclass__(cls) -> None:
        _kinds[cls.__name__] = cls  # how an annotation names it

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a file; raise FileNotFoundError if there is none, Damaged if anything is wrong."""
        try:
            return cls.load(files.read_checked(path), path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None

    @classmethod
    def load(cls, values: object, path: str) -> Self:
        """Check what was read; raise Damaged, with the name of the file, if anything is wrong."""
        try:
            if not isinstance(values, dict):
                raise ValueError(f"not a value of type {cls.__name__}")
            return cls._make(values)
        except ValueError as error:
            raise Damaged(f"{path} is damaged: {error}") from None

    @classmethod
    def _make(cls, values: dict[str, object]) -> Self:
        found = {}
        for name, kind in cls.__annotations__.items():
            if name in values:
                try:
                    found[name] = _convert(values[name], kind)
                except (ValueError, OverflowError) as error:
                    raise ValueError(f"{name}: {error}") from None
            elif not hasattr(cls, name):
                raise ValueError(f"{name} is missing")
        return cls(**found)

    def dump(self) -> dict[str, object]:
        """Return the keys and values as they are in the file."""
        return {name: _dump(getattr(self, name)) for name in type(self).__annotations__}

    def write(self, path: str) -> None:
        """Replace the file as a whole."""
        files.write_checked(path, self.dump())

    def replace(self, **changes: object) -> Self:
        """Return a copy with some values changed."""
        return type(self)(**{**vars(self), **changes})


def _dump(value: object) -> object:
    if isinstance(value, Record):
        return value.dump()
    if isinstance(value, dict):
        return {key: _dump(one) for key, one in value.items()}
    # A list is of one kind; the result of a run may have a million tuples.
    if isinstance(value, list) and value and isinstance(value[0], Record):
        return [_dump(one) for one in value]
    return value


_TEXTS, _INTEGERS = ("str", "str | None"), ("int", "int | None")


def _convert(value: object, kind: str) -> object:
    """Check a value of a file against an annotation; raise ValueError if it does not fit."""
    # Nearly all values are of these kinds, and commands read the files of hundreds of sessions.
    is_text = type(value) is str and kind in _TEXTS
    is_integer = type(value) is int and kind in _INTEGERS and _fits(value, value)
    if is_text or is_integer or kind == "object":
        return value
    if kind.endswith(" | None"):
        return None if value is None else _convert(value, kind.removesuffix(" | None"))
    if isinstance(value, list):
        return _convert_list(value, kind)
    if isinstance(value, dict):
        return _convert_dict(value, kind)
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = float(value)
        sound = abs(value) < float("inf")  # false for NaN; `math` is one more import in the job
    else:
        sound = type(value).__name__ == kind and (type(value) is not int or _fits(value, value))
    if not sound:
        raise ValueError(f"not a value of type {kind}")
    return value


def _convert_dict(values: dict[str, object], kind: str) -> object:
    if kind.startswith("dict[str, "):
        inner = kind[len("dict[str, ") : -1]
        return {key: _convert(one, inner) for key, one in values.items()}
    if kind in _kinds:
        return _kinds[kind]._make(values)
    raise ValueError(f"not a value of type {kind}")


def _convert_list(values: list[object], kind: str) -> object:
    if kind.startswith("tuple["):
        return _convert_tuple(values, kind[len("tuple[") : -1].split(", "))
    if kind == "list[int]":
        _check_integers(values)
        return values
    if kind.startswith("list["):
        return [_convert(one, kind[len("list[") : -1]) for one in values]
    raise ValueError(f"not a value of type {kind}")


def _convert_tuple(values: list[object], kinds: list[str]) -> tuple[object, ...]:
    if len(values) != len(kinds):
        raise ValueError(f"not {len(kinds)} values")
    if set(kinds) == {"int"}:
        _check_integers(values)
        return tuple(values)
    return tuple(_convert(one, kind) for one, kind in zip(values, kinds, strict=True))


def _check_integers(values: list[object]) -> None:
    """Check all values at once: the result of a run may have a million."""
    numbers = [one for one in values if type(one) is int]
    if len(numbers) < len(values) or (numbers and not _fits(min(numbers), max(numbers))):
        raise ValueError("not all values are integers")


def _fits(low: int, high: int) -> bool:
    return low >= -(2**63) and high < 2**64


# ---- the session ----------------------------------------------------------------------------


class Meta(Record):
    """meta.json: which process was recorded, where, and when it began."""

    format: int
    id: str
    host: str
    pid: int
    ppid: int
    parent: str | None  # the session of the process that forked this one
    uid: int
    start_ticks: int  # when the process started, as the kernel counts; 0 if unknown
    boot_id: str | None
    pid_namespace: int | None = None  # what `pid` is a number of; another container has another
    argv: list[str]
    cwd: str | None
    executable: str | None
    python: str
    machine: str
    kernel: str
    monotonic_ns: int  # when the recording began, on the monotonic clock
    wall_ns: int  # the same moment on the wall clock
    locked: bool  # false if the file system has no locks
    config: dict[str, object]  # the settings that the recording began with
    config_from: dict[str, str] | None = None  # where those come from that are not the defaults
    launcher: str | None
    rank: int | None
    world_size: int | None
    local_rank: int | None
    job: str | None
    job_kind: str | None
    job_env: dict[str, str]
    environment: dict[str, str | None] | None = None  # all names; the values that may be shown


class SealedTable(Record):
    """What the ring of a table counted, written when the ring is removed."""

    schema: str
    head: int
    dropped: int
    misfit: int
    text_lost: int
    unfinished: int


class Sealed(Record):
    """sealed.json: how a session ended, and what its rings counted."""

    state: str
    end_wall_ns: int
    sealed_wall_ns: int
    tables: dict[str, SealedTable]
    texts_lost: int = 0  # texts that found no room in the text table
    stacks_lost: int = 0  # samples that found no room for their stack


class Exit(Record):
    """exit.json: how the process ended."""

    status: int | None  # as wait() returns it; None if nobody saw it
    out_of_memory: str | None = None  # whose memory was full: cgroup or machine
    certainty: str = "sure"  # of that: sure, likely or possible
    exception: str | None = None  # that nothing in the main thread caught: class and message
    call: str | None = None  # of sys.exit: what it said, and where
    call_code: int | None = None  # the exit code that this call asked for
    is_guess: bool = False  # the status is that of the last fault that the process told of


class MemoryKills(Record):
    """memory_kills.json: what the counters of the process's cgroup said at the last look."""

    folder: str
    number: int  # of the folder's inode: another cgroup of this name has another
    kills: int  # processes of it that were killed for memory
    wholes: int  # times that it, or a cgroup above it, was killed as a whole
    limits: int  # times that a limit was reached
    ours: int  # our own processes in it, which are killed first
    starts: int  # collectors that had been started since one proved itself
    is_judged: bool = False  # whether the counters were compared after the end


class Expired(Record):
    """archive/expired.json: what retention removed."""

    rows: dict[str, int]  # how many, by table


class LocalsFrame(Record):
    """One frame of a stack with its local variables, as text."""

    func: str
    file: str
    line: int
    locals: dict[str, str]


class Locals(Record):
    """locals.json: the answer to the last `sonde stacks --locals`."""

    number: int
    t_ns: int
    threads: dict[str, list[LocalsFrame]]  # by thread id; the innermost frame first


def read_config(path: str) -> dict[str, settings.Value]:
    """Read config.json: every setting, with its default if the file does not have it."""
    try:
        values = files.read_checked(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None
    found: dict[str, settings.Value] = {}
    for name, key in settings.list_keys().items():
        value, kind = values.get(name, key.default), type(key.default).__name__
        try:
            checked: Any = _convert(value, "float" if kind == "int" else kind)
        except (ValueError, OverflowError) as error:
            raise Damaged(f"{path} is damaged: {name}: {error}") from None
        found[name] = int(checked) if kind == "int" else checked
    return found


# ---- snapshots ------------------------------------------------------------------------------


class SnapshotAbout(Record):
    """What the numbers of a snapshot are about; it follows the statistics in the file."""

    kind: str  # delta or total
    of: str  # samples or calls
    weight: str
    number: int
    session: str
    host: str
    pid: int
    rank: int | None
    command: str
    python: str
    start_ns: int
    end_ns: int
    start_wall: str
    end_wall: str


# ---- runs -----------------------------------------------------------------------------------


class RunEnd(Record):
    """The last state of a run, its reason, and when it was reached."""

    state: str
    reason: str | None
    t_ns: int


class RunAbout(Record):
    """run.json: the request for a run, and its outcome."""

    id: str
    session: str
    number: int  # of the run within its process, as the control page counts
    name: str | None
    by: str
    tags: list[str]
    sources: list[str]
    every_ns: int
    max_s: float | None
    whole: bool  # it covers the recording from its start
    past: bool  # the recording had already ended
    asked_ns: int
    stop_ns: int | None = None
    skipped: int = 0
    starter_pid: int
    starter_ticks: int | None
    final: RunEnd | None = None
    exports: list[str]
    user: str | None = None  # who started it
    environment: dict[str, str] | None = None  # variables that were to be recorded with it
    max_frames: int | None = None  # of a stack that are kept


class RunResult(Record):
    """result.json: the stacks that a run found, with their sums."""

    id: str
    session: str | None
    name: str | None
    tags: list[str]
    skipped: int
    host: str | None
    pid: int | None
    rank: int | None
    begin_ns: int
    end_ns: int
    wall_offset_ns: int
    reason: str | None
    frames: list[tuple[str, str, int, int]]  # function, file, its first line, the line that ran
    nodes: list[tuple[int, int, int, int, int, int]]  # parent, frame, then as `ours`
    ours: tuple[int, int, int, int]  # samples; wall, CPU and GIL time of our own code around it
    user: str | None = None
    environment: dict[str, str] | None = None


# ---- attach ---------------------------------------------------------------------------------


class AttachAnswer(Record):
    """answer.json: the answer of the code that `sonde attach` runs; see job/attached.py."""

    session: str | None = None
    is_new: bool = False
    error: str | None = None


# ---- other ranks ----------------------------------------------------------------------------


class ProfilerRequest(Record):
    """A request from the profiler of another rank; see job/mxnet/ranks.py."""

    number: int  # larger than that of every earlier request
    what: str
    values: dict[str, object]


class ProfilerRequests(Record):
    """profiler.json: the last requests, oldest first."""

    requests: list[ProfilerRequest]


class ProfilerAnswer(Record):
    """profiler.answer.json: the last request that was obeyed."""

    number: int
    path: str | None  # the trace file that this process writes
    errors: dict[str, str]  # why a request was refused, by its number
