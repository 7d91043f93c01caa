"""What is in the way of an attach is said before anything is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import wait_for
from sonde.attach import preflight
from sonde.attach.elf import Elf, NotElf
from sonde.attach.procfs import ProcessFiles
from sonde.session import list_sessions
from support.places import TESTS

PID = 4242


@pytest.fixture
def fake(tmp_path: Path, start):
    """A /proc with one process in it, which is a real one but for what a test changes."""
    process = start("import time\nprint('ready', flush=True)\ntime.sleep(100)")
    proc = tmp_path / "proc"
    folder = proc / str(PID)
    (folder / "ns").mkdir(parents=True)
    (folder / "task" / str(PID)).mkdir(parents=True)
    real = Path(f"/proc/{process.pid}")
    for name in ("maps", "cmdline", "environ", "comm"):
        (folder / name).write_bytes((real / name).read_bytes())
    status = (real / "status").read_text().replace(str(process.pid), str(PID))
    (folder / "status").write_text(status)
    (folder / "mem").symlink_to(real / "mem")
    (folder / "root").symlink_to("/")
    for name in ("exe", "cwd", "ns/pid", "ns/mnt"):
        (folder / name).symlink_to(os.readlink(real / name))
    return folder


def change(folder: Path, name: str, value: str) -> None:
    lines = (folder / "status").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(name + ":")]
    (folder / "status").write_text("\n".join([*kept, f"{name}:\t{value}", ""]))


def replace_link(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(target)


def check(folder: Path, root: Path) -> preflight.VisitPlan:
    return preflight.check(PID, str(root), str(folder.parent))


def test_a_plain_program_can_be_attached_to(fake: Path, root: Path) -> None:
    plan = check(fake, root)
    assert plan.version == sys.version_info[:2]
    assert plan.fits and plan.text and plan.restorer


def test_no_such_process(root: Path) -> None:
    with pytest.raises(preflight.NoSuchProcess, match="no process") as caught:
        preflight.check(2**22 + 1, str(root))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name, value, error, words", [
    ("State", "Z (zombie)", preflight.NotRunning, "has ended"),
    ("State", "T (stopped)", preflight.NotRunning, "kill -CONT 4242"),
    ("TracerPid", "1", preflight.AlreadyTraced, r"\(1\)"),
    ("Tgid", "4000", preflight.CannotAttach, "thread of process 4000"),
    ("Uid", "54321 54321 54321 54321", preflight.OtherUser, "sudo -u #54321 sonde attach 4242"),
    ("Seccomp", "1", preflight.Forbidden, "seccomp"),
    ("x86_Thread_features", "shstk wrss", preflight.Forbidden, "shadow stack"),
])  # fmt: skip
def test_each_state_has_its_error(fake, root, name, value, error, words) -> None:
    change(fake, name, value)
    with pytest.raises(error, match=words):
        check(fake, root)


def test_another_user_is_named(fake: Path, root: Path) -> None:
    change(fake, "Uid", "65534 65534 65534 65534")
    with pytest.raises(preflight.OtherUser, match="belongs to nobody"):
        check(fake, root)


def test_another_container_is_told_from_ours(fake: Path, root: Path) -> None:
    replace_link(fake, "ns/pid", "pid:[1]")
    with pytest.raises(preflight.OtherContainer, match="docker exec"):
        check(fake, root)


def test_other_files_are_noticed(fake: Path, root: Path, tmp_path: Path) -> None:
    replace_link(fake, "ns/mnt", "mnt:[1]")
    check(fake, root)  # the same package is seen there
    replace_link(fake, "root", str(tmp_path))
    with pytest.raises(preflight.OtherContainer, match="does not see"):
        check(fake, root)


def test_what_is_no_python_is_named(fake: Path, root: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            wait_for(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("sleep"))
            with pytest.raises(preflight.NotPython, match="sleep"):
                preflight.check(process.pid, str(root))
        finally:
            process.kill()


def make_header(machine: int, bits: int) -> bytes:
    head = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    return head + (2).to_bytes(2, "little") + machine.to_bytes(2, "little") + bytes(44)


@pytest.mark.parametrize("machine, bits, words", [(3, 32, "32-bit i386"), (243, 64, "riscv64")])
def test_another_machine_is_named(fake, root, tmp_path, machine, bits, words) -> None:
    (tmp_path / "program").write_bytes(make_header(machine, bits))
    replace_link(fake, "exe", str(tmp_path / "program"))
    with pytest.raises(preflight.OtherMachine, match=words):
        check(fake, root)


def test_a_library_that_was_replaced_is_named(fake: Path, root: Path) -> None:
    lines = (fake / "maps").read_text().splitlines()
    changed = [
        " ".join([*line.split()[:4], "1", line.split()[5]]) if "libc.so" in line else line
        for line in lines
    ]
    (fake / "maps").write_text("\n".join(changed) + "\n")
    with pytest.raises(preflight.CannotAttach, match="was replaced since"):
        check(fake, root)


def test_a_recorded_process_names_its_session(start, root: Path) -> None:
    process = start(
        "import sonde, time\nprint(sonde.start(collector='off') and 'ready', flush=True)\n"
        "time.sleep(100)"
    )
    known = next(iter(list_sessions(str(root))))
    with pytest.raises(preflight.AlreadyRecorded, match=known.id):
        preflight.check(process.pid, str(root))


def test_a_stopped_process_is_left_alone(start, root: Path) -> None:
    process = start("import time\nprint('ready', flush=True)\ntime.sleep(100)")
    process.send_signal(signal.SIGSTOP)
    status = ProcessFiles(process.pid)
    wait_for(lambda: status.read_status()["State"].startswith("T"))
    with pytest.raises(preflight.NotRunning, match="is stopped"):
        preflight.check(process.pid, str(root))


@pytest.mark.parametrize("scope, rights, words", [
    ("1", "0", "ptrace_scope is 1; use sudo"), ("2", "0", "ptrace_scope is 2"),
    ("3", "0", "restarted"), ("0", "0", "--cap-add=SYS_PTRACE"),
    ("0", "ffffffff", "security module"),
])  # fmt: skip
def test_a_refusal_says_what_helps(tmp_path: Path, scope: str, rights: str, words: str) -> None:
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(scope + "\n")
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "status").write_text(f"CapEff:\t{rights}\n")
    assert words in preflight.explain_refusal(str(tmp_path))


def find_python(version: str) -> str | None:
    script = TESTS / "support" / "find_python.py"
    done = subprocess.run(
        [sys.executable, str(script), version], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"])
def test_the_version_of_a_running_python_is_found_and_judged(root: Path, version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    number = tuple(map(int, version.split(".")))
    with subprocess.Popen(
        [python, "-c", "print(1, flush=True); import time; time.sleep(100)"], stdout=subprocess.PIPE
    ) as process:
        try:
            process.stdout.readline()
            if f"{version}t" == f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}":
                with pytest.raises(preflight.OtherVersion, match=f"has a core for {version}t only"):
                    preflight.check(process.pid, str(root))
            elif number == sys.version_info[:2]:
                assert preflight.check(process.pid, str(root)).version == number
            else:
                words = (
                    "older than 3.10" if number < (3, 10) else f"is Python {version} without sonde"
                )
                with pytest.raises(preflight.OtherVersion, match=words):
                    preflight.check(process.pid, str(root))
        finally:
            process.kill()


def test_a_python_that_is_too_slow_to_say_is_not_said_to_lack_sonde(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o700)
    process = SimpleNamespace(
        pid=PID,
        read_words=lambda _name: ["python"],
        read_link={"exe": str(slow), "cwd": "/"}.get,
    )
    with pytest.raises(preflight.CannotAttach, match=r"did not say within 0\.1 s"):
        preflight.has_own(process, 0.1)


def test_a_free_threaded_python_is_told_as_such(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "PACKAGE", str(tmp_path))  # where no core is
    elf = SimpleNamespace(
        find_symbols=lambda names: {name: SimpleNamespace(address=0) for name in names},
        read=lambda _address, size: sys.hexversion.to_bytes(size, "little"),
    )
    process = SimpleNamespace(
        pid=PID,
        read_words=lambda _name: ["python"],
        read_link={"exe": "/bin/false", "cwd": "/"}.get,
    )
    with pytest.raises(preflight.OtherVersion, match="free-threaded"):
        preflight.check_version(process, SimpleNamespace(elf=elf))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01" + b"\xff" * 90],
    ids=["empty", "cut", "script", "nonsense"],
)
def test_a_file_that_is_no_program_is_told_as_such(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(NotElf):
        Elf(str(tmp_path / "file"))


def test_symbols_are_those_that_the_loader_finds() -> None:
    import ctypes

    libc = next(m for m in ProcessFiles(os.getpid()).list_mappings() if "/libc.so" in m.path)
    found = Elf(libc.path).find_symbols(["pthread_create", "mmap", "no such name"])
    real = ctypes.cast(ctypes.CDLL(None).pthread_create, ctypes.c_void_p).value
    assert set(found) == {"pthread_create", "mmap"}
    assert libc.start + found["pthread_create"].address == real


@pytest.mark.parametrize(
    "named, said", [("env/bin/python3", "{}/env/bin/python3"), ("python3", "python3")]
)
def test_a_python_is_named_so_that_the_command_works_in_any_folder(
    tmp_path: Path, named: str, said: str
) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cmdline").write_bytes(f"{named}\0train.py\0".encode())
    (tmp_path / "42" / "cwd").symlink_to(tmp_path)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python3").symlink_to(sys.executable)
    found = preflight.describe_python(ProcessFiles(42, str(tmp_path)))
    assert found == said.format(tmp_path)
