"""The machine's processors, together and individually."""

from __future__ import annotations

from collections.abc import Iterator

from sonde.collector.sensors._files import Reader, Row
from sonde.tables.system import Core, Cpu


class Sensor:
    """Reads /proc/stat; shares need two readings, so the first one yields none."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen: dict[bytes, tuple[int, list[int]]] = {}

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about the machine."""
        now, data = self._reader.read(f"{self._reader.proc}/stat")
        lines = [line.split() for line in data.splitlines()]
        names = [words[0] for words in lines if words and words[0].startswith(b"cpu")]
        counts = {words[0]: int(words[1]) for words in lines if len(words) > 1}
        used = {}
        for words in lines[: len(names)]:
            found = self._move(words[0], now, [int(word) for word in words[1:9]])
            if found is not None:
                used[words[0]] = found
        switches = self._count_switches(now, counts.get(b"ctxt"))
        kept = {*names, b"ctxt"}  # a processor that comes back starts afresh
        self._seen = {name: seen for name, seen in self._seen.items() if name in kept}
        cores = {name: found for name, found in used.items() if name != b"cpu"}
        if b"cpu" in used:
            passed, shares = used[b"cpu"]
            top = max((shares[0] for _, shares in cores.values()), default=None)
            words = self._reader.read(f"{self._reader.proc}/loadavg")[1].split()
            load = [float(word) for word in words[:3]]
            yield Cpu, (now, passed, len(names) - 1, *shares, *load, top,
                        counts.get(b"procs_running"), counts.get(b"procs_blocked"),
                        switches)  # fmt: skip
        for name, (passed, shares) in cores.items():
            yield Core, (now, passed, int(name[3:]), *shares[:4])

    def _move(self, name: bytes, now: int, ticks: list[int]) -> tuple[int, list[float]] | None:
        """Return the interval and the shares: busy, user, system, iowait, steal."""
        before = self._seen.get(name)
        self._seen[name] = (now, ticks)
        if before is None:
            return None
        # Idle and iowait may decrease a little: the kernel estimates them for an idle processor.
        used = [max(0, new - old) for new, old in zip(ticks, before[1], strict=True)]
        whole = sum(used)
        if whole == 0 or now <= before[0]:
            return None
        # User time includes guest time. Columns that an older kernel lacks count as 0.
        user, nice, system, idle, iowait, irq, softirq, steal = (
            100 * ticks / whole for ticks in (*used, *[0] * 8)[:8]
        )
        busy = max(0.0, 100 - idle - iowait)
        shares = [busy, user + nice, system + irq + softirq, iowait, steal]
        return now - before[0], shares

    def _count_switches(self, now: int, count: int | None) -> int | None:
        if count is None:
            return None
        before = self._seen.get(b"ctxt")
        self._seen[b"ctxt"] = (now, [count])
        return None if before is None else max(0, count - before[1][0])

    def read_process(self, _pid: int) -> Iterator[Row]:
        """Yield nothing: see the sensor `process`."""
        return iter(())
