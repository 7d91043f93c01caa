"""The environment variables that sonde reads and sets: nothing else touches os.environ, except
job/autostart.py and the library _delay, which decide before this is loaded."""

from __future__ import annotations

import os
import sys

from sonde.config_file import FileSettings, fold, list_unknown, read_files
from sonde.errors import ConfigError
from sonde.settings import SWITCHES, Key, Value, Values, list_keys, list_strange, read_values
from sonde.words import name_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Other variables of a setting: short names for what people ask for most (a program's compile times,
# and its modules), and those of torch's own profiler of compilations. The last that is set counts.
_ALIASES = {
    "source.compile": ("TORCH_COMPILE_STROBELIGHT", "SONDE_TORCH_COMPILE"),
    "source.torch": ("SONDE_TORCH_PROFILING",),
    "compile.frames": ("COMPILE_STROBELIGHT_FRAME_FILTER",),
    "compile.max_duration": ("COMPILE_STROBELIGHT_MAX_PROFILE_TIME",),
    "compile.max_frames": ("COMPILE_STROBELIGHT_MAX_STACK_LENGTH",),
}
# All variables of ours that are no settings, wherever they are read.
_OTHERS = ("SONDE_COMMAND", "SONDE_DIR", "SONDE_FLEET", "SONDE_HELD", "SONDE_JOB", "SONDE_NVML",
           "SONDE_ONLY", "SONDE_PAGER", "SONDE_PARENT", "SONDE_PROFILER_AUTOSTART",
           "SONDE_PROFILER_OWNER", "SONDE_TORCH_COMPILE", "SONDE_TORCH_PROFILING")  # fmt: skip
GIVEN = "given at the start"


def load_settings(given: Mapping[str, object]) -> tuple[Values, list[str]]:
    """Return all settings: defaults, then files, then the environment, then what the caller gave.

    A bad value in a file or in the environment must not stop the program that meets it, so it is
    left out and returned as a complaint. A bad value in `given` raises ConfigError."""
    if isinstance(given, Values):  # those of a parent, in a forked child
        return given, []
    keys = list_keys()
    values = Values({name: key.default for name, key in keys.items()}, {})
    found, complaints = find_file_settings()
    complaints += list_unknown(found, keys)
    if not is_child():
        complaints += list_strange(os.environ, {*_OTHERS, *map(variable_of, keys)})
    for name, key in keys.items():
        in_files = [(one.origin, one.raw) for one in found.get(fold(name), ())]
        variables = read_variables((*_ALIASES.get(name, ()), variable_of(name)))
        for origin, raw in (*in_files, *variables.items()):
            try:
                values[name] = _read_switch(key, origin, raw)
                values.origins[name] = origin
            except ConfigError as error:
                complaints.append(f"{origin}: {error}")
    values.update(read_values(given))
    values.origins.update(dict.fromkeys(given, GIVEN))
    return values, complaints


def find_file_settings() -> tuple[FileSettings, list[str]]:
    """Return what files set: the user's own, then the project's; and complaints. A process that a
    recorded one has started reads none: it finds what its parent found in the environment,
    whichever folder it works in."""
    if is_child():
        return {}, []
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    home = _find_config_home()
    return read_files(os.path.join(home, "sonde", "config.toml") if home else None, folder)


def _find_config_home() -> str | None:
    """Return the folder of the user's own settings. Without $HOME there is none: to look it up may
    take a network."""
    home, given = (os.environ.get(name, "") for name in ("HOME", "XDG_CONFIG_HOME"))
    if os.path.isabs(given):
        return given
    return os.path.join(home, ".config") if os.path.isabs(home) else None


def _read_switch(key: Key, variable: str, raw: str) -> Value:
    # Torch takes any text for yes.
    return True if variable.startswith("TORCH_") and raw.lower() not in SWITCHES else key.read(raw)


def read_tool_setting(key: Key, given: object = None, found: FileSettings | None = None) -> Value:
    """Return a setting of the tool: as given, else from the environment, else from a file, else the
    default. `found` is what files set, for whoever reads many settings."""
    raw = os.environ.get(variable_of(key.name)) if given is None else given
    if raw is not None:
        return key.read(raw)
    found = find_file_settings()[0] if found is None else found
    for one in found.get(fold(key.name), ())[-1:]:
        try:
            return key.read(one.raw)
        except ConfigError as error:
            raise ConfigError(f"{one.origin}: {error}") from None
    return key.default


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return "SONDE_" + name.upper().replace(".", "_")


def is_asked_for() -> bool:
    """Tell whether the environment asks for a recording of this very process.

    SONDE decides. Where it is not set, SONDE_TORCH_COMPILE, torch's own TORCH_COMPILE_STROBELIGHT
    and SONDE_TORCH_PROFILING do: without a recording nothing can be seen of a compilation or of
    modules."""
    only = os.environ.get("SONDE_ONLY")
    words = [os.environ.get("SONDE")]
    if words[0] is None:
        words = [_read_last(_ALIASES[name]) for name in ("source.compile", "source.torch")]
    wanted = any(SWITCHES.get((word or "").lower(), True) for word in words)
    return wanted and (only is None or only == str(os.getpid()))


def _read_last(names: tuple[str, ...]) -> str | None:
    found = [os.environ[name] for name in names if name in os.environ]
    return found[-1] if found else None


def read_profiler() -> dict[str, object] | None:
    """Return what the environment asks of the profiler, as set_config takes it; None if nothing.

    It asks with SONDE_PROFILER_AUTOSTART, or with MXNet's own variables, whose mode is a sum of
    1 symbolic, 2 imperative, 4 API and 8 memory."""
    words = (os.environ.get(f"{name}_PROFILER_AUTOSTART", "") for name in ("SONDE", "MXNET"))
    if not any(SWITCHES.get(word.lower(), True) for word in words):
        return None
    mode = _number(os.environ, "MXNET_PROFILER_MODE")
    bits = {"symbolic": 1, "imperative": 2, "api": 4, "memory": 8}
    return {f"profile_{name}": bool((13 if mode is None else mode) & bits[name]) for name in bits}


def claim_profiler() -> bool:
    """Tell whether this is the first process that profiles itself because of the environment.

    The processes that it starts are not, so that they do not write its file."""
    return os.environ.setdefault("SONDE_PROFILER_OWNER", str(os.getpid())) == str(os.getpid())


def follow_children(root: str, values: Values) -> list[str]:
    """Have the Python processes that this one starts record themselves under the same root, and
    know that they are children, and what files set here. Returns the variables that were set.

    SONDE_PARENT is the process and what a child finds if it may wait: see _core/delay/delay.c. It
    may not if a launcher made it a rank, or if something must be there from the first moment on."""
    ranks = [f"{rank}={os.environ.get(rank, '')}" for _launcher, rank, *_others in _RANKS]
    words = [str(os.getpid()), *ranks, *(f"{name}=" for name in _AT_ONCE)]
    wanted = {"SONDE_PARENT": " ".join(words)}
    if "SONDE" not in os.environ:
        wanted["SONDE"] = "1"
        if "SONDE_DIR" not in os.environ and find_root() != root:
            wanted["SONDE_DIR"] = root
    in_files = [name for name, origin in values.origins.items() if os.sep in origin]
    wanted |= name_settings(values, in_files)
    os.environ.update(wanted)
    return list(wanted)


def is_child() -> bool:
    """Tell whether a recorded process has started this one."""
    return os.environ.get("SONDE_PARENT", "").partition(" ")[0] not in ("", str(os.getpid()))


_AT_ONCE = ("SONDE_SNAPSHOT_SIGNAL", "SONDE_SOURCE_CALL", "SONDE_PROFILER_AUTOSTART",
            "MXNET_PROFILER_AUTOSTART")  # fmt: skip


def unfollow_children(names: Iterable[str]) -> None:
    """Undo follow_children()."""
    for name in names:
        os.environ.pop(name, None)


def find_root() -> str:
    """Return the folder of all sessions: $SONDE_DIR, else the user's own in the temp folder."""
    given = os.environ.get("SONDE_DIR")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    for folder in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp"):
        if folder and os.path.isdir(folder):
            return os.path.join(os.path.abspath(folder), f"sonde-{os.getuid()}")
    return os.path.abspath(f"sonde-{os.getuid()}")


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of these variables that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def read_user() -> str | None:
    """Return the name of the user, as the login has set it."""
    return os.environ.get("USER") or os.environ.get("LOGNAME")


def make_child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, for a process that we start."""
    return {**os.environ, **changes}


def call_with(name: str, value: str, call: Callable[[], object]) -> None:
    """Call a function with a variable set that only C code sees, unless the program has set it."""
    if name in os.environ:
        call()
        return
    os.putenv(name, value)  # not os.environ: children would inherit it
    try:
        call()
    finally:
        os.unsetenv(name)


def name_command(argv: list[str], job: str | None) -> dict[str, str]:
    """Return the variable that tells all processes of one `sonde run` that they belong together."""
    return {"SONDE_COMMAND": _name_launch(argv)} if job is None else {"SONDE_JOB": job}


def begin_job() -> list[str]:
    """Have the Python processes that this one starts know that they belong together, unless a
    launcher did so already. Returns the variables that were set."""
    if read_identity().job is not None:
        return []
    os.environ["SONDE_COMMAND"] = _name_launch(getattr(sys, "orig_argv", sys.argv))
    return ["SONDE_COMMAND"]


def _name_launch(argv: list[str]) -> str:
    """Return the name of a job that nobody gave a name: its program and its first process."""
    name = name_program(argv).removesuffix(".py")
    plain = "".join(c for c in name if c.isalnum() or c in "._-").lstrip("-") or "python"
    return f"{'python' if plain == 'c' else plain}-{os.getpid()}"


# VTune and Nsight Systems set these to the library that a program should load to reach them.
_LISTENERS = {"itt": "INTEL_LIBITTNOTIFY{bits}", "nvtx": "NVTX_INJECTION{bits}_PATH"}


def find_listeners() -> list[str]:
    """Return the mirrors whose tool has set its variable."""
    bits = sys.maxsize.bit_length() + 1
    return [name for name, variable in _LISTENERS.items()
            if os.environ.get(variable.format(bits=bits))]  # fmt: skip


def find_nvml() -> str | None:
    """Return the folder of a `pynvml` that tests use instead of the installed one: $SONDE_NVML."""
    return os.environ.get("SONDE_NVML") or None


def uses_colour() -> bool:
    """Tell whether colours are welcome: neither NO_COLOR nor TERM=dumb is set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def find_pager() -> tuple[list[str], dict[str, str]] | None:
    """Return the command of the user's pager and its environment: $SONDE_PAGER, else $PAGER, else
    less; None if it is empty or `cat`, or if there is none."""
    from shutil import which  # only in the tool

    words = os.environ.get("SONDE_PAGER", os.environ.get("PAGER", "less")).split()
    if not words or words == ["cat"] or which(words[0]) is None:
        return None
    # As git does: end at once if all fits, colours, and leave the text on the screen.
    return words, {"LESS": "FRX", **os.environ}


# The first match wins: torchrun and MPI set their variables on top of SLURM's.
_RANKS: tuple[tuple[str, str, str, str], ...] = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("kubernetes", "JOB_COMPLETION_INDEX", "JOB_PARALLELISM", ""),
)
# The first is set by the user, SONDE_COMMAND by `sonde run` or the first recorded process. Ray's is
# last: the program that started Ray has none, but all its workers are part of one command.
_JOBS = (
    ("SONDE_JOB", "sonde"), ("SLURM_JOB_ID", "slurm"), ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf"), ("JOB_NAME", "kubernetes"),
    ("SONDE_COMMAND", "sonde"), ("RAY_JOB_ID", "ray"),
)  # fmt: skip
_PLACES = ("SLURM_NODEID", "SLURM_STEP_ID", "SLURM_ARRAY_TASK_ID", "GROUP_RANK", "POD_NAME",
           "POD_NAMESPACE", "NODE_NAME", "KUBERNETES_SERVICE_HOST")  # fmt: skip


class Identity:
    """The place of a process in its job, as its launcher put it into the environment."""

    __slots__ = ("job", "job_env", "job_kind", "launcher", "local_rank", "rank", "world_size")

    def __init__(self) -> None:
        self.launcher: str | None = None
        self.rank: int | None = None
        self.world_size: int | None = None
        self.local_rank: int | None = None
        self.job: str | None = None
        self.job_kind: str | None = None
        self.job_env: dict[str, str] = {}


def read_identity(environ: Mapping[str, str] | None = None) -> Identity:
    """Return rank, world size, local rank, job and launcher of this process."""
    env = os.environ if environ is None else environ
    found = Identity()
    for launcher, rank, world_size, local_rank in _RANKS:
        if _number(env, rank) is not None:
            found.launcher, found.rank = launcher, _number(env, rank)
            found.world_size = _number(env, world_size)
            found.local_rank = _number(env, local_rank)
            break
    # torchrun's id is "none" unless the user names the job, and made up with --standalone: then the
    # ranks belong to the command that started torchrun, if that is recorded.
    given = {name: env[name] for name, _ in _JOBS if env.get(name, "none") not in ("", "none")}
    if env.get("GROUP_WORLD_SIZE") == "1" and "SONDE_COMMAND" in given:
        run = given.get("TORCHELASTIC_RUN_ID", "")
        if [len(part) for part in run.split("-")] == [8, 4, 4, 4, 12]:
            del given["TORCHELASTIC_RUN_ID"]
    jobs = [(given[name], kind) for name, kind in _JOBS if name in given]
    found.job, found.job_kind = jobs[0] if jobs else (None, None)
    found.job_env = {name: env[name] for name in _PLACES if name in env}
    return found


# Beginnings of names whose values say how fast a job can be, and nothing about anybody.
_TELLING = (
    "CUDA_", "CUDNN_", "CUBLAS_", "NCCL_", "RCCL_", "HIP_", "HSA_", "NVIDIA_VISIBLE", "UCX_",
    "GLOO_", "FI_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "XLA_", "TF_", "JAX_",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "VECLIB_", "MALLOC_", "TCMALLOC_",
    "GLIBC_TUNABLES", "PYTHON", "TOKENIZERS_PARALLELISM", "SONDE", "RANK", "WORLD_SIZE",
    "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "LD_PRELOAD", "SLURM_CPUS", "SLURM_GPUS",
    "SLURM_JOB_ID", "SLURM_NTASKS",
)  # fmt: skip
# A name with one of these words never shows its value, whoever asks for it.
_SECRET = ("SECRET", "PASS", "PWD", "CREDENTIAL", "PRIVATE", "AUTH", "COOKIE", "SIGNATURE", "DSN",
           "URL", "URI", "KEY", "TOKEN")  # fmt: skip
_MOST_NAMES, _MOST_CHARS = 1000, 200


def read_environment(
    wanted: str = "", env: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Return the names of all variables, with the values of those that are known to be harmless;
    `wanted` names others, separated by commas."""
    env = os.environ if env is None else env
    more = tuple(name for name in wanted.replace(",", " ").split())
    found: dict[str, str | None] = {}
    for name in sorted(env)[:_MOST_NAMES]:
        plain = name.encode("utf-8", "backslashreplace").decode()[:_MOST_CHARS]
        shown = name in more or (name.startswith(_TELLING) and not name.startswith("PYTHONPATH"))
        found[plain] = _show(env[name]) if shown and not _is_secret(name) else None
    return found


def _is_secret(name: str) -> bool:
    if name == "TOKENIZERS_PARALLELISM":
        return False
    return any(word in name.upper() for word in _SECRET)


def _show(value: str) -> str:
    text = value[:_MOST_CHARS].encode("utf-8", "backslashreplace").decode()
    return text if len(value) <= _MOST_CHARS else f"{text} … {len(value) - _MOST_CHARS} more"


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


def name_settings(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, str]:
    """Return settings as environment variables, for a process that is to have the same."""
    return {variable_of(name): str(values[name]) for name in names}


def find_fleet_folder() -> str:
    """Return the folder of the token and the certificate that agents and those who ask share."""
    home = _find_config_home() or os.path.join(os.path.expanduser("~"), ".config")
    return os.environ.get("SONDE_FLEET") or os.path.join(home, "sonde", "fleet")


def read_slurm_nodes() -> str | None:
    """Return SLURM's list of the nodes of the job that we are part of; None outside of one."""
    return os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST")


def silence_grpc() -> None:
    """Keep gRPC, if it is not in use yet, from telling stderr in its own words what failed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forbid_debug_downloads() -> None:
    """Have elfutils, if it is loaded from now on, look for debugging files on this machine only."""
    os.environ.pop("DEBUGINFOD_URLS", None)
