"""Find where the kernel keeps the numbers of a process's cgroup, whatever the layout.

There are three layouts: version 1 (a tree per controller), version 2 (one tree) and both at once.
In a container the tree may begin at the container's own cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._files import Reader

_CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "cpuset")
_INIT = "/init.scope"  # where systemd puts process 1, apart from all others


class Mount:
    """A tree of cgroups that is mounted here."""

    def __init__(self, root: str, folder: str, controllers: frozenset[str]) -> None:
        self.root = root  # the cgroup that the folder shows
        self.folder = folder
        self.controllers = controllers  # empty: version 2

    def find(self, path: str) -> str:
        """Return the folder of a cgroup, or of the topmost visible one if it lies outside."""
        inside = self.root in ("/", path) or path.startswith(self.root + "/")
        if not inside or ".." in path.split("/"):
            return self.folder
        rest = path if self.root == "/" else path[len(self.root) :]
        folder = self.folder + rest.rstrip("/")
        # In a container without a cgroup namespace the path may be the host's.
        return folder if os.path.isdir(folder) else self.folder

    def list_up(self, folder: str) -> Iterator[str]:
        """Yield a cgroup's folder and those above it: each may set a limit."""
        while True:
            yield folder
            if len(folder) <= len(self.folder):
                return
            folder = os.path.dirname(folder)


class Group:
    """A process's cgroup: its version, and its folder for each controller."""

    def __init__(self, path: str, folders: dict[str, tuple[Mount, str]]) -> None:
        self.path, self.folders = path, folders
        counted = [folders[name][0] for name in ("cpuacct", "memory") if name in folders]
        # The root of version 1 counts the whole machine, with the page cache as memory in use.
        self.roots = {
            name
            for name, (mount, folder) in folders.items()
            if mount.controllers and os.path.exists(f"{folder}/release_agent")
        }
        self.version = 0 if not counted else 1 if any(m.controllers for m in counted) else 2

    def is_unified(self, controller: str) -> bool:
        """Return whether this controller is in the tree of version 2."""
        return controller in self.folders and not self.folders[controller][0].controllers

    def name(self, controller: str, file: str) -> str | None:
        """Return the path of a file of the cgroup, or None if there is no such controller."""
        if controller not in self.folders:
            return None
        return f"{self.folders[controller][1]}/{file}"

    def list_up(self, controller: str) -> list[str]:
        """Return the folders that may limit the cgroup, its own first."""
        if controller not in self.folders:
            return []
        mount, folder = self.folders[controller]
        return list(mount.list_up(folder))


class Groups:
    """Finds the cgroup of a process."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._mounts: tuple[int, list[Mount]] = (-1, [])
        self._found: dict[tuple[bytes, int], tuple[Group, str | None]] = {}

    def find(self, pid: int) -> Group:
        """Return the cgroup of a process, or of the container or machine if `pid` is 0; raise
        OSError if the process is gone."""
        return self._find(pid)[0]

    def find_unified(self, pid: int) -> str | None:
        """Return the folder of its cgroup in the tree of version 2, the only one with pressure."""
        try:
            return self._find(pid)[1]
        except OSError:
            return None

    def _find(self, pid: int) -> tuple[Group, str | None]:
        path = f"{self._reader.proc}/{pid}/cgroup"
        lines = self._reader.read(path)[1] if pid else self._read_top()
        # Trees are mounted when a machine or container starts: checking now and then is enough.
        age = self._reader.number // 64
        if self._mounts[0] != age:
            self._mounts = (age, self._read_mounts())
            self._found.clear()
        if (lines, age) not in self._found:
            self._found[lines, age] = self._resolve(lines)
        return self._found[lines, age]

    def _read_top(self) -> bytes:
        """Return the lines of process 1, which is in the topmost cgroup that we can see. Our own
        cgroup may be that of any login or job that happened to start us."""
        try:
            lines = self._reader.read(f"{self._reader.proc}/1/cgroup")[1]
        except OSError:  # this /proc hides processes of other users
            return self._reader.read(f"{self._reader.proc}/self/cgroup")[1]
        return lines.replace(f"{_INIT}\n".encode(), b"/\n").replace(b"//\n", b"/\n")

    def _read_mounts(self) -> list[Mount]:
        found = []
        data = self._reader.read(f"{self._reader.proc}/self/mountinfo", keep=False)[1]
        for line in os.fsdecode(data).splitlines():
            front, _, back = line.partition(" - ")
            words, kind = front.split(), back.split()
            if len(words) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
                continue
            options = kind[-1].split(",") if kind[0] == "cgroup" else []
            controllers = frozenset(options) & frozenset(_CONTROLLERS)
            if kind[0] == "cgroup2" or controllers:
                found.append(Mount(_unescape(words[3]), _unescape(words[4]), controllers))
        return found

    def _resolve(self, lines: bytes) -> tuple[Group, str | None]:
        paths: dict[str, str] = {}  # controller, or "" for version 2
        for line in os.fsdecode(lines).splitlines():
            _number, names, path = line.split(":", 2)
            for name in names.split(","):
                paths[name] = path
        folders: dict[str, tuple[Mount, str]] = {}
        unified = None
        for mount in self._mounts[1]:
            if not mount.controllers:
                if "" in paths and unified is None:
                    unified = (mount, mount.find(paths[""]))
                continue
            for name in mount.controllers & paths.keys():
                folders.setdefault(name, (mount, mount.find(paths[name])))
        if unified is not None:
            for name in _list_unified(unified[1]):
                folders.setdefault(name, unified)
        owner = next((name for name in ("memory", "cpuacct", "cpu") if name in folders), None)
        path = paths.get("" if owner is None or folders[owner] is unified else owner, "/")
        return Group(path, folders), None if unified is None else unified[1]


def _list_unified(folder: str) -> Iterator[str]:
    """Yield the controllers of version 2 that are on for this cgroup, by their version 1 names."""
    files = (("cpu", "cpu.max"), ("cpuacct", "cpu.stat"), ("memory", "memory.stat"),
             ("blkio", "io.stat"), ("cpuset", "cpuset.cpus.effective"))  # fmt: skip
    for name, file in files:
        if os.path.exists(f"{folder}/{file}"):
            yield name


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
