"""Fill, cut, copy over and remove the disk under live jobs: every one of them must finish.

    sudo python tests/stress/file_systems.py [--short] [ext4 xfs btrfs tmpfs …]

Each file system is made in a small image and mounted in a private mount namespace, so nothing stays
behind. What cannot be made here (no root, no mkfs) is named and skipped; the exit code is 1 if a job
did not finish with the right result."""

from __future__ import annotations

import os
import random
import shutil
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
    subprocess.run(["cp", "-r", "--reflink=auto", folder, place / "copy"], check=False)
    fill(place, folder)


def cut_all(_place: Path, folder: Path) -> None:
    """Cut every file to nothing."""
    for path in folder.iterdir():
        if path.is_file():
            os.truncate(path, 0)


def copy_over(place: Path, folder: Path) -> None:
    """Copy a saved session over the live one."""
    subprocess.run(["cp", "-r", folder, place / "saved"], check=False)
    subprocess.run(f"cp -r {place}/saved/. {folder}/", shell=True, check=False)


def scribble(_place: Path, folder: Path) -> None:
    """Write random bytes into every file."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("r+b") as file:
                file.write(random.randbytes(min(path.stat().st_size, 2**20)))


def remove(place: Path, _folder: Path) -> None:
    """Remove the whole root."""
    shutil.rmtree(place / "root", ignore_errors=True)


def unmount(place: Path, _folder: Path) -> None:
    """Take the file system away."""
    subprocess.run(["umount", "-l", place], check=False)


HARMS: list[Callable[[Path, Path], None]] = [
    fill, copy_and_fill, cut_all, copy_over, scribble, remove, unmount,
]  # fmt: skip


def mount(kind: str, image: Path, place: Path) -> bool:
    """Make a file system and mount it; False if that is not possible here."""
    options = ["-o", "loop"]
    if kind == "tmpfs":
        return (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], check=False
            ).returncode
            == 0
        )
    if shutil.which(MAKE[kind][0]) is None:
        return False
    with image.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    made = subprocess.run([*MAKE[kind], image], capture_output=True, check=False)
    return (
        made.returncode == 0
        and subprocess.run(["mount", *options, image, place], check=False).returncode == 0
    )


def attempt(place: Path, harm: Callable[[Path, Path], None], collector: str) -> str | None:
    """Record a job there, do the harm, and return what is wrong with the job; None if nothing is."""
    root = place / "root"
    root.mkdir(mode=0o700)
    script = Path(tempfile.gettempdir()) / "sonde-job.py"
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
        job.kill()
        return "it hangs"
    if (job.returncode, out) == (0, "done\n"):
        return None
    return f"exit code {job.returncode}, {out[-80:]!r}, {err[-200:]!r}"


def main(kinds: list[str]) -> int:
    if os.geteuid() != 0:
        print("file systems: skipped, only root may mount them")
        return 0
    if os.environ.get("SONDE_IN_NAMESPACE") is None:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, "SONDE_IN_NAMESPACE": "1"}).returncode
    is_short = "--short" in kinds
    kinds = [kind for kind in kinds if kind != "--short"]
    wrong = 0
    for kind in kinds or ["ext4", "xfs", "btrfs", "tmpfs"]:
        for number, harm in enumerate(HARMS):
            both = ("alone", "collector")
            for collector in both[number % 2 :][:1] if is_short else both:
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder) / "mounted"
                    place.mkdir()
                    if not mount(kind, Path(folder) / "image", place):
                        print(f"{kind}: skipped, it cannot be made here")
                        break
                    found = attempt(place, harm, collector)
                    print(f"{kind} {harm.__name__} {collector}: {found or 'ok'}", flush=True)
                    wrong += found is not None
                    subprocess.run(["umount", "-l", place], capture_output=True, check=False)
            else:
                continue
            break
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
