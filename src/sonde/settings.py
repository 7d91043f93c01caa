"""Settings: their names, types, defaults and meaning; and all that is read from the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping

from sonde import plugins
from sonde.errors import ConfigError

Value = bool | int | float | str

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6,
          "gb": 10**9, "k": 2**10, "m": 2**20, "g": 2**30}  # fmt: skip
_SPANS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0,
          "d": 86400.0}  # fmt: skip
_WORDS = {"on": True, "true": True, "yes": True, "1": True,
          "off": False, "false": False, "no": False, "0": False, "": False}  # fmt: skip

# One word for the program whose compile times, or modules, are wanted; see is_asked_for().
_ALIASES = {"source.compile": "SONDE_TORCH_COMPILE", "source.torch": "SONDE_TORCH_PROFILING"}

# How the help of a source ends that is not on by itself.
_OFF = "off until asked)."

_SHOWN_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_SHOWN_SPANS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3), ("us", 1e-6))


def _split_unit(text: str) -> tuple[float, str]:
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    return float(number), text.strip()[len(number) :].strip().lower()


def parse_switch(text: str) -> bool:
    """`on` or `off`."""
    return _WORDS[text.strip().lower()]


def parse_size(text: str) -> int:
    """Bytes: `4096`, `8MiB`."""
    number, unit = _split_unit(text)
    return int(number * _SIZES[unit])


def parse_span(text: str) -> float:
    """Seconds: `0.5`, `100ms`, `10min`, `7d`."""
    number, unit = _split_unit(text)
    # To the nanosecond: 50 times 1e-6 is a little less than the 50e-6 that is allowed.
    return round(number * _SPANS[unit], 9)


def parse_signal(text: str) -> str:
    """A signal: `USR1`, or `off`."""
    name = text.strip().upper().removeprefix("SIG")
    if name in ("OFF", "NO", "0", ""):
        return ""
    # Those that a program may well use for such a thing; never one that ends it on purpose.
    return {"USR1": "USR1", "USR2": "USR2", "HUP": "HUP"}[name]


def parse_pattern(text: str) -> str:
    """A regular expression: `1/.*`, or `off`."""
    import re  # only when there is one

    if text.strip().lower() in ("off", ""):
        return ""
    try:
        return re.compile(text).pattern
    except re.error as error:
        raise ValueError(error) from None


def parse_count(text: str) -> int:
    """A whole number: `100`."""
    return int(text)


def parse_number(text: str) -> float:
    """A number: `1`, `0.5`."""
    return float(text)


# A name, attributes and constant places of it, and the function that it is looked for in.
WATCH = r"""([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[(?:-?\d+|'[^'"]*'|"[^'"]*")\])*)@([\w.<>]+)"""


def parse_watch(text: str) -> str:
    """Variables and their functions: `loss@step; opt.param_groups[0]['lr']@train`, or `off`."""
    import re  # only when there is one

    if text.strip().lower() in ("off", ""):
        return ""
    if not re.fullmatch(rf"\s*{WATCH}\s*(?:[;,]\s*{WATCH}\s*)*[;,]?\s*", text):
        raise ValueError(text)
    return text.strip()


def parse_mirrors(text: str) -> str:
    """Tools that events are passed on to: `itt,nvtx`, `auto` or `off`."""
    words = [word for word in text.lower().replace(",", " ").split() if word != "off"]
    if words != ["auto"] and not set(words) <= set(plugins.list_names("job.mirrors")):
        raise ValueError(text)
    return ",".join(dict.fromkeys(words))


class Key:
    """One setting."""

    __slots__ = ("default", "doc", "high", "live", "low", "name", "parse")

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Value],
        default: Value,
        doc: str,
        *,
        live: bool = False,
        low: float = 0,
        high: float = float("inf"),
    ) -> None:
        self.name, self.parse, self.default, self.doc = name, parse, default, doc
        self.live, self.low, self.high = live, low, high

    def read(self, raw: object) -> Value:
        """The value of this setting, from text or from a value of its own type."""
        kind = (self.parse.__doc__ or "").strip(".")
        try:
            value = raw if self._is_mine(raw) else self.parse(str(raw))
        except (KeyError, ValueError, OverflowError):
            raise ConfigError(f"{self.name}={raw!s} is not understood: {kind}") from None
        assert isinstance(value, (bool, int, float, str))
        if self.parse is parse_size and not isinstance(value, int):
            value = self.parse(f"{value:f}")
        if not isinstance(value, (bool, str)) and not self.low <= value <= self.high:
            raise ConfigError(f"{self.name}={raw!s} is outside {self.low:g} … {self.high:g}")
        return value

    def show(self, value: object) -> str:
        """A value as a person would write it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if not isinstance(value, (int, float)) or self.parse is parse_count:
            return str(value) or "off"
        if self.parse is parse_number:
            return f"{value:g}"
        for unit, size in _SHOWN_SIZES if self.parse is parse_size else _SHOWN_SPANS:
            if value >= size and round(value / size, 6) % 1 == 0:
                return f"{value / size:g}{unit}"
        return f"{value:g}"

    def _is_mine(self, raw: object) -> bool:
        if isinstance(self.default, bool):
            return isinstance(raw, bool)
        if isinstance(self.default, str):
            return False
        return isinstance(raw, (int, float)) and not isinstance(raw, bool)


_FIXED = (
    Key("follow", parse_switch, True, "record Python processes that the program starts"),
    Key("collector", parse_switch, True, "start the collector: it archives, and watches the host"),
    Key("ring.bytes", parse_size, 16 * 2**20, "memory of one table's ring", low=2**12, high=2**36),
    Key("text.bytes", parse_size, 4 * 2**20, "memory for distinct texts", low=2**12, high=2**32),
    Key("stack.every", parse_span, 0.01, "time between two samples of all stacks", live=True,
        low=50e-6, high=3600),
    Key("stack.bytes", parse_size, 8 * 2**20, "memory for distinct stacks", low=2**14, high=2**34),
    Key("stack.slow", parse_switch, False, "read stacks through the GIL, as on an unknown Python"),
    Key("snapshot.every", parse_span, 0.0, "time between two snapshots; 0: only when asked",
        live=True, low=0, high=30 * 86400),
    Key("snapshot.keep", parse_count, 1000, "keep at most so many snapshots", live=True, low=1,
        high=2**31),
    Key("snapshot.signal", parse_signal, "", "a signal that asks for a snapshot: USR1"),
    Key("compile.frames", parse_pattern, "", "profile compilations whose id begins like this: 1/.*",
        live=True),
    Key("torch.budget_pct", parse_number, 1.0, "how much longer steps may take because they are "
        "recorded, in percent; 0: no limit", live=True, high=100),
    Key("torch.depth", parse_count, 1000, "record modules down to this depth; 0: the model alone",
        live=True, high=1000),
    Key("torch.every", parse_count, 1, "record the modules of one step in so many", live=True,
        low=1, high=2**31),
    Key("torch.modules", parse_pattern, "", "record modules whose name matches this: .*attn",
        live=True),
    Key("torch.watch", parse_watch, "", "variables to write down at every step's end: "
        "loss@train_step", live=True),
    Key("event.mirror", parse_mirrors, "auto", "tools that are told of regions, counters and "
        "markers: itt, nvtx, torch, otel; auto: VTune or Nsight, when they started the program",
        live=True),
    Key("collective.device", parse_switch, True, "have NCCL time its kernels: an event each"),
    Key("archive", parse_switch, True, "keep rows in Parquet before the ring overwrites them",
        live=True),
    Key("archive.every", parse_span, 600.0, "longest time a row stays in the ring alone", live=True,
        low=0.1),
    Key("host.every", parse_span, 1.0, "time between two looks at the machine", live=True,
        low=0.1, high=3600),
    Key("host.pid", parse_count, -1, "the process to watch, with all that it starts; -1: the "
        "recorded one, 0: the whole container or machine", live=True, low=-1, high=2**31),
    Key("retain.bytes", parse_size, 2**30, "keep at most this much on disk"),
    Key("retain.age", parse_span, 7 * 86400.0, "keep a recording this long after its end"),
)  # fmt: skip


def list_keys() -> dict[str, Key]:
    """Every setting by name; each source adds its switch `source.NAME`."""
    keys = {key.name: key for key in _FIXED}
    for name in plugins.list_names("job.sources"):
        doc = plugins.read_help("job.sources", name)
        key = Key(f"source.{name}", parse_switch, not doc.endswith(_OFF), doc, live=True)
        keys[key.name] = key
    return keys


def read_values(given: Mapping[str, object]) -> dict[str, Value]:
    """Validated settings; an unknown name is refused with the nearest known one."""
    keys = list_keys()
    return {name: _find(keys, name).read(raw) for name, raw in given.items()}


def _find(keys: Mapping[str, Key], name: str) -> Key:
    if name in keys:
        return keys[name]
    from difflib import get_close_matches  # only when something is wrong: 4 ms

    near = get_close_matches(name, keys, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(keys))}"
    raise ConfigError(f"there is no setting {name}; {hint}")


def load(given: Mapping[str, object]) -> tuple[dict[str, Value], list[str]]:
    """All settings: defaults, then the environment, then what the caller gave.

    A bad value in the environment must not stop the program that carries it:
    it is left out and comes back as a complaint. A bad `given` raises."""
    keys = list_keys()
    values = {name: key.default for name, key in keys.items()}
    complaints = []
    for name, key in keys.items():
        for variable in (_ALIASES.get(name), variable_of(name)):
            raw = None if variable is None else os.environ.get(variable)
            if raw is not None:
                try:
                    values[name] = key.read(raw)
                except ConfigError as error:
                    complaints.append(f"{variable}: {error}")
    values.update(read_values(given))
    return values, complaints


def read_tool(key: Key, given: object = None) -> Value:
    """A setting of the tool's own: what was given, else the environment's, else the default."""
    raw = os.environ.get(variable_of(key.name)) if given is None else given
    return key.default if raw is None else key.read(raw)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return "SONDE_" + name.upper().replace(".", "_")


# ---- the rest of the environment ---------------------------------------------------------


def is_asked_for() -> bool:
    """Does the environment ask this very process to be recorded?

    SONDE does; where it is not set, so do SONDE_TORCH_COMPILE and SONDE_TORCH_PROFILING: there is
    nothing to see of a compilation, or of modules, without a recording."""
    only = os.environ.get("SONDE_ONLY")
    words = [os.environ.get("SONDE")]
    if words[0] is None:
        words = [os.environ.get(name) for name in _ALIASES.values()]
    wanted = any(_WORDS.get((word or "").lower(), True) for word in words)
    return wanted and (only is None or only == str(os.getpid()))


def read_profiler() -> dict[str, object] | None:
    """What the environment asks of the profiler, as set_config takes it; None: nothing.

    SONDE_PROFILER_AUTOSTART, or the variables of the original, whose mode is a sum of 1 symbolic,
    2 imperative, 4 API and 8 memory."""
    words = (os.environ.get(f"{name}_PROFILER_AUTOSTART", "") for name in ("SONDE", "MXNET"))
    if not any(_WORDS.get(word.lower(), True) for word in words):
        return None
    mode = _number(os.environ, "MXNET_PROFILER_MODE")
    bits = {"symbolic": 1, "imperative": 2, "api": 4, "memory": 8}
    return {f"profile_{name}": bool((13 if mode is None else mode) & bits[name]) for name in bits}


def claim_profiler() -> bool:
    """Is this the first process that profiles itself because of the environment? Those that it
    starts are not: its file is its own."""
    return os.environ.setdefault("SONDE_PROFILER_OWNER", str(os.getpid())) == str(os.getpid())


def mark_followed(root: str) -> list[str]:
    """Have the Python processes that this one starts record themselves, under the same root; the
    variables that were set for that.

    Not needed where the environment asked for us: it is inherited as it is."""
    if "SONDE" in os.environ:
        return []
    wanted = {"SONDE": "1"}
    if "SONDE_DIR" not in os.environ and find_root() != root:
        wanted["SONDE_DIR"] = root
    os.environ.update(wanted)
    return list(wanted)


def unmark_followed(names: Iterable[str]) -> None:
    """Undo mark_followed()."""
    for name in names:
        os.environ.pop(name, None)


def find_root() -> str:
    """The folder of all sessions: $SONDE_DIR, else one of the user's own in the temp folder."""
    given = os.environ.get("SONDE_DIR")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    for folder in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp"):
        if folder and os.path.isdir(folder):
            return os.path.join(os.path.abspath(folder), f"sonde-{os.getuid()}")
    return os.path.abspath(f"sonde-{os.getuid()}")


def make_child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, for a process we start."""
    return {**os.environ, **changes}


def call_with(name: str, value: str, call: Callable[[], object]) -> None:
    """Call it with a variable set that only C code sees, unless the program has its own word."""
    if name in os.environ:
        call()
        return
    os.putenv(name, value)  # not os.environ: children would have it, too
    try:
        call()
    finally:
        os.unsetenv(name)


def name_command(argv: list[str], job: str | None) -> dict[str, str]:
    """What tells all processes of one `sonde run` that they belong together."""
    if job is not None:
        return {"SONDE_JOB": job}
    name = os.path.splitext(os.path.basename(argv[0]))[0]
    return {"SONDE_COMMAND": f"{name}-{os.getpid()}"}


# How VTune and Nsight Systems say to a program that they listen: the library to load.
_LISTENERS = {"itt": "INTEL_LIBITTNOTIFY{bits}", "nvtx": "NVTX_INJECTION{bits}_PATH"}


def find_listeners() -> list[str]:
    """The mirrors whose tool has said in the environment that it listens."""
    bits = sys.maxsize.bit_length() + 1
    return [name for name, variable in _LISTENERS.items()
            if os.environ.get(variable.format(bits=bits))]  # fmt: skip


def find_nvml() -> str | None:
    """A folder with a `pynvml` to use instead of the installed one, for tests: $SONDE_NVML."""
    return os.environ.get("SONDE_NVML") or None


def uses_colour() -> bool:
    """Colours unless the user or the terminal says no (NO_COLOR, TERM=dumb)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# First match wins: torchrun sets its own on top of SLURM's, and so does MPI under SLURM.
_RANKS: tuple[tuple[str, str, str, str], ...] = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("kubernetes", "JOB_COMPLETION_INDEX", "JOB_PARALLELISM", ""),
)
# The first is the user's word, the last is made up by `sonde run`.
_JOBS = (
    ("SONDE_JOB", "sonde"), ("SLURM_JOB_ID", "slurm"), ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf"), ("JOB_NAME", "kubernetes"), ("RAY_JOB_ID", "ray"),
    ("SONDE_COMMAND", "sonde"),
)  # fmt: skip
_PLACES = ("SLURM_NODEID", "SLURM_STEP_ID", "SLURM_ARRAY_TASK_ID", "GROUP_RANK", "POD_NAME",
           "POD_NAMESPACE", "NODE_NAME", "KUBERNETES_SERVICE_HOST")  # fmt: skip


def read_identity(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """Rank, world size, local rank, job and launcher, as the environment tells them."""
    env = os.environ if environ is None else environ
    identity: dict[str, object] = dict.fromkeys(("launcher", "rank", "world_size", "local_rank"))
    for launcher, *names in _RANKS:
        if _number(env, names[0]) is not None:
            identity["launcher"] = launcher
            for key, name in zip(("rank", "world_size", "local_rank"), names, strict=True):
                identity[key] = _number(env, name)
            break
    # torchrun's id is "none" unless the user names the job: not worth a name.
    jobs = [(env[name], kind) for name, kind in _JOBS if env.get(name, "none") not in ("", "none")]
    identity["job"], identity["job_kind"] = jobs[0] if jobs else (None, None)
    identity["job_env"] = {name: env[name] for name in _PLACES if name in env}
    return identity


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


def name_settings(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, str]:
    """Settings as environment variables, for a process that should have the same."""
    return {variable_of(name): str(values[name]) for name in names}
