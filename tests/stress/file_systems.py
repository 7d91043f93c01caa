"""Fill, cut, copy over and remove the disk under live jobs: every one of them must finish.

    sudo python tests/stress/file_systems.py [--short] [ext4 xfs btrfs tmpfs fuse …]

Each file system is made in a small image and mounted in a private mount namespace, so nothing stays
behind. What cannot be made here (no root, no mkfs, no bindfs for FUSE) is named and skipped; the exit
code is 1 if a job did not finish with the right result."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

JOB = """
import sys, time
import sonde
class Item:
    number: int
    text: str
emit = sonde.table(Item)
folder = sonde.start(collector=sys.argv[1] == "collector")
print(folder, flush=True)
total = n = 0
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(200):
        with sonde.span("load", shard=n % 7):
            emit(n, "a text %d" % n)
        n += 1
    time.sleep(0.001)
print("done", flush=True)
"""
SECONDS = 4.0
MEGABYTES = 400
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}


def fill(place: Path, _folder: Path) -> None:
    """Take all the room there is, down to the last page."""
    for size in (2**20, 2**12):
        for number in range(10**6):
            try:
                with (place / f"fill-{size}-{number}").open("wb") as file:
                    file.write(os.urandom(size) * 16)
                    os.fsync(file.fileno())
            except OSError:
                break
    os.sync()


def copy_and_fill(place: Path, folder: Path) -> None:
    """Share every block with a copy, so that each later store needs a new one."""
    call("cp", "-r", "--reflink=auto", folder, place / "copy")
    fill(place, folder)


def cut_all(_place: Path, folder: Path) -> None:
    """Cut every file to nothing."""
    for path in folder.iterdir():
        if path.is_file():
            with contextlib.suppress(OSError):
                os.truncate(path, 0)


def copy_over(place: Path, folder: Path) -> None:
    """Copy a saved session over the live one."""
    call("cp", "-r", folder, place / "saved")
    call("cp", "-r", f"{place}/saved/.", folder)


def scribble(_place: Path, folder: Path) -> None:
    """Write random bytes into every file."""
    for path in folder.iterdir():
        if path.is_file():
            with contextlib.suppress(OSError), path.open("r+b") as file:  # no room is harm, too
                file.write(random.randbytes(min(path.stat().st_size, 2**20)))


def remove(place: Path, _folder: Path) -> None:
    """Remove the whole root."""
    shutil.rmtree(place / "root", ignore_errors=True)


def unmount(place: Path, _folder: Path) -> None:
    """Take the file system away."""
    call("umount", "-l", place)


def end_server(_place: Path, _folder: Path) -> None:
    """Kill the process behind a FUSE file system: from now on each access fails."""
    for server in SERVERS:
        server.kill()
        server.wait()


def stop_server(_place: Path, _folder: Path) -> None:
    """Stop that process for a while: each access waits for it. The job waits as well, and goes on."""
    for server in SERVERS:
        server.send_signal(signal.SIGSTOP)
        time.sleep(3)
        server.send_signal(signal.SIGCONT)


HARMS: list[Callable[[Path, Path], None]] = [
    fill, copy_and_fill, cut_all, copy_over, scribble, remove, unmount,
]  # fmt: skip
SERVERS: list[subprocess.Popen[bytes]] = []  # of the FUSE file system that is mounted


def mount(kind: str, folder: Path, place: Path) -> bool:
    """Make a file system and mount it; False if that is not possible here."""
    if kind == "tmpfs":
        return call("mount", "-t", "tmpfs", "-o", "size=40m,mode=700", "tmpfs", place)
    if kind == "fuse":
        return mount_fuse(folder, place)
    if shutil.which(MAKE[kind][0]) is None:
        return False
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    return call(*MAKE[kind], image) and call("mount", "-o", "loop", image, place)


def mount_fuse(folder: Path, place: Path) -> bool:
    """Show a small file system once more, through a server of our own."""
    behind = folder / "behind"
    behind.mkdir()
    if not (
        Path("/dev/fuse").exists() and shutil.which("bindfs") and mount("tmpfs", folder, behind)
    ):
        return False
    SERVERS[:] = [subprocess.Popen(["bindfs", "-f", behind, place], stderr=subprocess.DEVNULL)]
    while not os.path.ismount(place) and SERVERS[0].poll() is None:
        time.sleep(0.01)
    return SERVERS[0].poll() is None


def unmount_all(folder: Path, place: Path) -> None:
    """Undo mount(), whatever was done to it meanwhile."""
    call("umount", "-l", place)
    end_server(place, folder)
    SERVERS.clear()
    call("umount", "-l", folder / "behind")


def call(*words: str | Path) -> bool:
    """Run a command; return whether it succeeded."""
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def attempt(place: Path, harm: Callable[[Path, Path], None], collector: str) -> str | None:
    """Record a job there, do the harm, and return what is wrong with the job; None if nothing is."""
    root = place / "root"
    root.mkdir(mode=0o700)
    script = Path(tempfile.gettempdir()) / f"sonde-job-{os.getpid()}.py"
    script.write_text(JOB)
    job = subprocess.Popen(
        [sys.executable, str(script), collector, str(SECONDS)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "SONDE_DIR": str(root)},
    )  # fmt: skip
    assert job.stdout is not None
    folder = Path(job.stdout.readline().strip())
    time.sleep(1.5)
    os.sync()  # so that the next store to a page needs the disk again
    harm(place, folder)
    try:
        out, err = job.communicate(timeout=SECONDS + 120)
    except subprocess.TimeoutExpired:
        end_server(place, folder)  # whoever waits for it gets an error, and can be killed
        job.kill()
        job.communicate()
        return "it hangs"
    if (job.returncode, out) == (0, "done\n"):
        return None
    return f"exit code {job.returncode}, {out[-80:]!r}, {err[-200:]!r}"


def main(kinds: list[str]) -> int:
    if os.geteuid() != 0:
        print("file systems: skipped, only root may mount them")
        return 0
    if os.environ.get("IN_NAMESPACE") is None:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, "IN_NAMESPACE": "1"}).returncode
    is_short = "--short" in kinds
    kinds = [kind for kind in kinds if kind != "--short"]
    wrong = 0
    for kind in kinds or ["ext4", "xfs", "btrfs", "tmpfs", "fuse"]:
        harms = [*HARMS, end_server, stop_server] if kind == "fuse" else HARMS
        for number, harm in enumerate(harms):
            both = ("alone", "collector")
            found = [
                attempt_on(kind, harm, one)
                for one in (both[number % 2 :][:1] if is_short else both)
            ]
            wrong += sum(one is False for one in found)
            if None in found:
                print(f"{kind}: skipped, it cannot be made here")
                break
    return 1 if wrong else 0


def attempt_on(kind: str, harm: Callable[[Path, Path], None], collector: str) -> bool | None:
    """Print what attempt() found on a new file system, and return whether the job is well; None if
    this file system cannot be made here."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, place = Path(name), Path(name) / "mounted"
        place.mkdir()
        try:
            if not mount(kind, folder, place):
                return None
            found = attempt(place, harm, collector)
        finally:
            unmount_all(folder, place)
    print(f"{kind} {harm.__name__} {collector}: {found or 'ok'}", flush=True)
    return found is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
