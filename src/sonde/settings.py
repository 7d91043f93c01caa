"""Settings: their names, types, defaults and meaning, and how values are parsed and shown."""

from __future__ import annotations

from sonde import plugins
from sonde.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeGuard

Value = bool | int | float | str

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6,
          "gb": 10**9, "k": 2**10, "m": 2**20, "g": 2**30}  # fmt: skip
_TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0,
          "d": 86400.0}  # fmt: skip
SWITCHES = {"on": True, "true": True, "yes": True, "1": True,
          "off": False, "false": False, "no": False, "0": False, "": False}  # fmt: skip
_SHOWN_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_SHOWN_TIMES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3), ("us", 1e-6))


def _split_unit(text: str) -> tuple[float, str]:
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    return float(number), text.strip()[len(number) :].strip().lower()


def parse_switch(text: str) -> bool:
    """`on` or `off`."""
    return SWITCHES[text.strip().lower()]


def parse_size(text: str) -> int:
    """Bytes: `4096`, `8MiB`."""
    number, unit = _split_unit(text)
    return int(number * _SIZES[unit])


def parse_duration(text: str) -> float:
    """Seconds: `0.5`, `100ms`, `10min`, `7d`."""
    number, unit = _split_unit(text)
    # Rounded to the nanosecond: 50 * 1e-6 is a little less than 50e-6, the lowest value allowed.
    return round(number * _TIMES[unit], 9)


def parse_signal(text: str) -> str:
    """A signal: `USR1`, or `off`."""
    name = text.strip().upper().removeprefix("SIG")
    if name in ("OFF", "NO", "0", ""):
        return ""
    # Signals that programs use for such requests; never one that is meant to end a program.
    return {"USR1": "USR1", "USR2": "USR2", "HUP": "HUP"}[name]


def parse_pattern(text: str) -> str:
    """A regular expression: `1/.*`, or `off`."""
    import re  # slow to import, and most programs have no pattern

    if text.strip().lower() in ("off", ""):
        return ""
    try:
        return re.compile(text).pattern
    except re.error as error:
        raise ValueError(error) from None


def parse_globs(text: str) -> str:
    """Patterns of files, separated by spaces: `*/site-packages/myapp/*`, or `off`."""
    return "" if text.strip().lower() == "off" else " ".join(text.split())


def parse_place(text: str) -> str:
    """A place that several hosts share: `s3://bucket/folder`, `gs://…`, `abfs://…`, an absolute
    path, or `off`; without a password."""
    word = text.strip().rstrip("/")
    if word.lower() in ("off", ""):
        return ""
    scheme, _, rest = word.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    # What is set here is stored with each recording, so it must hold nothing secret.
    if at and scheme in ("s3", "gs", "gcs") and user != "anonymous":
        raise ValueError(text)
    if ":" in user or "#" in word or "," in word:
        raise ValueError(text)
    if not word.startswith("/") and (
        scheme not in ("s3", "gs", "gcs", "abfs", "abfss") or not rest
    ):
        raise ValueError(text)
    return word


def parse_address(text: str) -> str:
    """Where to listen: `ADDRESS` or `ADDRESS:PORT`; `on` or `1` is this machine alone, and `off`
    or `0` nowhere."""
    word = text.strip()
    if word.lower() in ("off", "0", "", "false", "no"):
        return ""
    if word.lower() in ("on", "1", "true", "yes"):
        return "127.0.0.1"
    if "://" in word or not all(one.isalnum() or one in ".:[]-_" for one in word):
        raise ValueError(text)
    return word


def parse_count(text: str) -> int:
    """A whole number: `100`."""
    return int(text)


def parse_number(text: str) -> float:
    """A number: `1`, `0.5`."""
    return float(text)


# A name with attributes and constant indices, and the function in which it is looked up.
WATCH = r"""([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[(?:-?\d+|'[^'"]*'|"[^'"]*")\])*)@([\w.<>]+)"""


def parse_watch(text: str) -> str:
    """Variables and their functions: `loss@step; opt.param_groups[0]['lr']@train`, or `off`."""
    import re  # slow to import, and most programs have no pattern

    if text.strip().lower() in ("off", ""):
        return ""
    if not re.fullmatch(rf"\s*{WATCH}\s*(?:[;,]\s*{WATCH}\s*)*[;,]?\s*", text):
        raise ValueError(text)
    return text.strip()


TRIGGERS = r"""(?:exception|step\s*>\s*(?P<times>[\d.]+)\s*x|
(?:(?P<kind>step|hang|memory)|(?P<named>span|counter)\s*:(?P<name>[^<>;,]*[^<>;,\s]))
\s*(?P<sign>[<>])\s*(?P<limit>[^<>;,]*[^<>;,\s]))"""


class TriggerCondition:
    """One condition of `trigger.on`."""

    __slots__ = ("is_below", "kind", "limit", "name", "text", "times")

    def __init__(self, text: str) -> None:
        import re  # slow to import, and most programs have no condition

        found = re.fullmatch(TRIGGERS, text, re.VERBOSE)
        if found is None:
            raise ValueError(text)
        kind = found["kind"] or found["named"] or ("step" if found["times"] else "exception")
        self.text, self.kind, self.name = text, kind, (found["name"] or "").strip()
        self.is_below = found["sign"] == "<"
        if self.is_below and kind != "counter":
            raise ValueError(text)  # only a counter can fall
        self.times = float(found["times"]) if found["times"] else None  # of a usual step
        read = {"memory": parse_size, "counter": parse_number}.get(kind, parse_duration)
        self.limit = float(read(found["limit"])) if found["limit"] else 0.0  # seconds, bytes, …


def list_conditions(text: str) -> list[TriggerCondition]:
    """Return the conditions that a value of `trigger.on` names."""
    parts = [part.strip() for part in text.replace(",", ";").split(";")]
    return [TriggerCondition(part) for part in parts if part and part.lower() != "off"]


def parse_conditions(text: str) -> str:
    """Conditions: `step>2x; span:load>1s; counter:queue>100; memory>8GiB; hang>60s`, or `off`."""
    found = list_conditions(text)
    if len(found) > 64:
        raise ValueError(text)
    return "; ".join(one.text for one in found)


def parse_names(text: str) -> str:
    """Names, separated by commas: `OMP_STACKSIZE, MY_FLAGS`, or `off`."""
    return ",".join(word for word in text.replace(",", " ").split() if word.lower() != "off")


def parse_mirrors(text: str) -> str:
    """Tools that events are passed on to: `itt,nvtx`, `auto` or `off`."""
    words = [word for word in text.lower().replace(",", " ").split() if word != "off"]
    if words != ["auto"] and not set(words) <= set(plugins.list_names("job.mirrors")):
        raise ValueError(text)
    return ",".join(dict.fromkeys(words))


class Key:
    """One setting."""

    __slots__ = ("changeable", "default", "doc", "high", "low", "name", "parse")

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Value],
        default: Value,
        doc: str,
        *,
        changeable: bool = False,
        low: float = 0,
        high: float = float("inf"),
    ) -> None:
        self.name, self.parse, self.default, self.doc = name, parse, default, doc
        self.changeable, self.low, self.high = changeable, low, high

    def read(self, raw: object) -> Value:
        """Return a value of this setting, from text or from a value of its type."""
        kind = (self.parse.__doc__ or "").strip(".")
        try:
            value = raw if self._is_mine(raw) else self.parse(str(raw))
        except (KeyError, ValueError, OverflowError):
            raise ConfigError(f"{self.name}={raw!s} is not understood: {kind}") from None
        if self.parse is parse_size and not isinstance(value, int):
            value = self.parse(f"{value:f}")
        if not isinstance(value, (bool, str)) and not self.low <= value <= self.high:
            raise ConfigError(f"{self.name}={raw!s} is outside {self.low:g} … {self.high:g}")
        return value

    def show(self, value: object) -> str:
        """Return a value as a person would write it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if not isinstance(value, (int, float)) or self.parse is parse_count:
            return str(value) or "off"
        if self.parse is parse_number:
            return f"{value:g}"
        for unit, size in _SHOWN_SIZES if self.parse is parse_size else _SHOWN_TIMES:
            if value >= size and round(value / size, 6) % 1 == 0:
                return f"{value / size:.12g}{unit}"
        return f"{value:g}"

    def _is_mine(self, raw: object) -> TypeGuard[bool | float]:
        if isinstance(self.default, bool):
            return isinstance(raw, bool)
        if isinstance(self.default, str):
            return False
        return isinstance(raw, (int, float)) and not isinstance(raw, bool)


_FIXED = (
    Key("follow", parse_switch, True, "record the Python processes that the program starts"),
    Key("collector", parse_switch, True, "start the collector: it archives, and watches the host"),
    Key("ring.bytes", parse_size, 16 * 2**20, "size of one table's ring; five times as much while "
        "rows wait for a collector", low=2**12, high=2**36),
    Key("text.bytes", parse_size, 8 * 2**20, "memory for distinct texts", low=2**12, high=2**32),
    Key("stack.every", parse_duration, 0.01, "time between two samples of all stacks",
        changeable=True, low=50e-6, high=3600),
    Key("stack.bytes", parse_size, 8 * 2**20, "memory for distinct stacks", low=2**14, high=2**34),
    Key("stack.slow", parse_switch, False, "hold the GIL to read stacks, as on an unknown Python"),
    Key("stack.native", parse_switch, False, "also the functions of C, C++ and Fortran that "
        "running threads are in, and that allocate; needs libdw: pip install 'sonde[native]'"),
    Key("stack.tasks", parse_switch, True, "look twice a second at what asyncio's tasks await"),
    Key("stack.fatal", parse_switch, True, "sample all threads once more before a signal such as "
        "SIGSEGV ends the program, and keep their native stacks"),
    Key("heap.every", parse_size, 0, "bytes that Python allocates between two samples of its heap, "
        "on average; 0: 512 KiB, and more while samples would take over 0.3 % of the time",
        changeable=True, low=0, high=2**40),
    Key("heap.libraries", parse_switch, True, "the heap is also what libraries ask the C library "
        "for"),
    Key("heap.when_growing", parse_switch, True, "while the memory of the program keeps growing, "
        "sample its heap for a time, unless source.heap was set", changeable=True),
    Key("code.mine", parse_globs, "", "files that count as the user's own code, although they lie "
        "where libraries do: */site-packages/myapp/*", changeable=True),
    Key("snapshot.every", parse_duration, 0.0, "time between two snapshots; 0: only on request",
        changeable=True, low=0, high=30 * 86400),
    Key("snapshot.keep", parse_count, 1000, "number of snapshots to keep", changeable=True, low=1,
        high=2**31),
    Key("snapshot.signal", parse_signal, "", "signal that asks for a snapshot: USR1"),
    Key("compile.frames", parse_pattern, "", "profile compilations whose id starts with a match of "
        "this: 1/.*", changeable=True),
    Key("environment.values", parse_names, "", "environment variables whose values are recorded as "
        "well; never those with a name like KEY, TOKEN or SECRET"),
    Key("exception.locals", parse_switch, False, "record local variables with uncaught exceptions",
        changeable=True),
    Key("trigger.on", parse_conditions, "", "record all stacks when one of these is met: "
        "exception, step>2x, span:NAME>1s, counter:NAME>5, memory>8GiB, hang>60s", changeable=True),
    Key("trigger.most", parse_count, 60, "rows of python.trigger in one hour", changeable=True,
        low=1, high=10**6),
    Key("compile.every", parse_duration, 0.001, "time between two samples of a compilation",
        changeable=True, low=50e-6, high=3600),
    Key("compile.max_duration", parse_duration, 1800.0, "profile a phase of a compilation for this "
        "long at most", changeable=True, low=0.001),
    Key("compile.max_frames", parse_count, 0, "frames of a stack to keep in the profile of a "
        "compilation, the innermost; 0: all", changeable=True, high=2**31),
    Key("torch.budget_pct", parse_number, 1.0, "how much longer recording may make a step, in "
        "percent; 0: no limit", changeable=True, high=100),
    Key("torch.depth", parse_count, 1000, "record modules down to this depth; 0: the model alone",
        changeable=True, high=1000),
    Key("torch.every", parse_count, 1, "record the modules of every n-th step", changeable=True,
        low=1, high=2**31),
    Key("torch.shapes", parse_switch, False, "record the shapes of the tensors that modules get",
        changeable=True),
    Key("torch.modules", parse_pattern, "", "record the modules whose name matches this: .*attn",
        changeable=True),
    Key("torch.watch", parse_watch, "", "variables to record at the end of every step: "
        "loss@train_step", changeable=True),
    Key("kernel.every", parse_count, 1000, "look into every n-th step for python.kernel_sum, less "
        "often if that would cost more than torch.budget_pct", changeable=True, low=1, high=2**31),
    Key("event.mirror", parse_mirrors, "auto", "tools that get the program's regions, counters and "
        "markers: itt, nvtx, torch, otel; auto: VTune or Nsight if it started the program",
        changeable=True),
    Key("collective.device", parse_switch, True, "have NCCL time its kernels, with an event each"),
    Key("archive", parse_switch, True, "keep rows in Parquet before the ring overwrites them",
        changeable=True),
    Key("archive.every", parse_duration, 600.0, "longest time that a row is in the ring alone",
        changeable=True, low=0.1),
    Key("archive.to", parse_place, "", "shared place that the archive is sent to as well: "
        "s3://bucket/folder, gs://…, abfs://…, or a folder that all hosts see"),
    Key("archive.ship_every", parse_duration, 60.0, "time between two shipments of the newest rows "
        "of a live recording to archive.to", changeable=True, low=1, high=86400),
    Key("agent", parse_address, "", "have the collector start `sonde agent` for this host: on, or "
        "the address to listen on, such as 0.0.0.0"),
    Key("host.every", parse_duration, 1.0, "time between two readings of the machine's sensors",
        changeable=True, low=0.1, high=3600),
    Key("host.pid", parse_count, -1, "process to watch, with all that it starts; -1: the recorded "
        "one, 0: the whole container or machine", changeable=True, low=-1, high=2**31),
    Key("retain.bytes", parse_size, 2**30, "keep at most this much on disk, of all recordings of a "
        "host"),
    Key("retain.age", parse_duration, 7 * 86400.0, "keep a recording this long after its end"),
)  # fmt: skip


class Values(dict[str, Value]):
    """All settings of a recording, and where those come from that are not the defaults: a file and
    its line, an environment variable, or the call that started the recording."""

    __slots__ = ("origins",)

    def __init__(self, values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
        super().__init__(values)
        self.origins = dict(origins)


def list_keys() -> dict[str, Key]:
    """Return every setting by name; each source adds its switch `source.NAME`."""
    keys = {key.name: key for key in _FIXED}
    for name in plugins.list_names("job.sources"):
        doc = plugins.read_help("job.sources", name)
        on = plugins.read_on("job.sources", name)
        key = Key(f"source.{name}", parse_switch, on, doc, changeable=True)
        keys[key.name] = key
    return keys


def read_values(given: Mapping[str, object]) -> dict[str, Value]:
    """Return checked values; the error for an unknown name suggests a known one."""
    keys = list_keys()
    return {name: _find(keys, name).read(raw) for name, raw in given.items()}


def _find(keys: Mapping[str, Key], name: str) -> Key:
    if name in keys:
        return keys[name]
    raise ConfigError(f"there is no setting {name}; {_suggest(name, keys)}")


_PREFIX = "SONDE_"
_ALIKE = 0.7  # of two names, from which on one may be meant by the other


def _suggest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only when something is wrong: 4 ms

    # What all variables begin with makes none like another.
    known = {one.removeprefix(_PREFIX): one for one in known}
    found = get_close_matches(name.removeprefix(_PREFIX), known, 1, _ALIKE)
    near = [known[one] for one in found]
    return f"did you mean {near[0]}?" if near else "`sonde config` lists all settings"


def list_strange(variables: Iterable[str], known: set[str]) -> list[str]:
    """Return a complaint about each environment variable that looks like one of ours and is none
    of the known ones. The limits of rules are known to the tool alone, and Kubernetes names the
    addresses of a service that is called sonde like SONDE_SERVICE_HOST and SONDE_PORT_80_TCP."""
    strange = [
        name for name in variables
        if name.startswith(_PREFIX) and name not in known
        and not name.startswith("SONDE_ADVICE_") and "_SERVICE_" not in name
        and "_PORT" not in name
    ]  # fmt: skip
    return [f"there is no setting {name}; {_suggest(name, known)}" for name in strange]
