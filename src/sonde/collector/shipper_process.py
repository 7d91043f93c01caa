"""The collector's end of the process that ships: started when there is something to ship."""

from __future__ import annotations

import subprocess

from sonde import launch
from sonde.session.shipped import has_unshipped

_REST_S = (1.0, 300.0)  # before it is started again: at first, and at most
_SOUND_S = 60.0  # one that ran so long had no trouble of its own


class ShipperProcess:
    """Keeps a shipper running as long as there is something to ship."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._child: subprocess.Popen[bytes] | None = None
        self._begun_s = self._rest_s = 0.0
        self._again_s = float("-inf")
        self._looks = True  # for sessions that an earlier collector left behind

    @property
    def is_running(self) -> bool:
        """Whether it has something to do."""
        return self._child is not None

    def keep(self, wanted: bool, now_s: float) -> None:
        """Start it if it is wanted and does not run; note its end."""
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self.end()
            self._rest_s = 0.0 if now_s - self._begun_s > _SOUND_S or code == 0 else self._rest_s
            self._rest_s = min(_REST_S[1], max(_REST_S[0], 2 * self._rest_s))
            self._again_s = now_s + self._rest_s
        if now_s < self._again_s:
            return
        if not wanted:
            wanted, self._looks = self._looks and has_unshipped(self._root), False
        if wanted:
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        command = launch.make_command("collector.shipper", self._root)
        if command:
            self._begun_s = now_s
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def end(self) -> None:
        """End it: it goes on where it was when another one is started."""
        if self._child is not None:
            self._child.kill()
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait()
            self._child = None
