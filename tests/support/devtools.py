"""A browser that stays open and is driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType

from support.browser import find_browser

_FLAGS = ("--no-sandbox", "--headless", "--remote-debugging-pipe",
          "--hide-scrollbars", "--disable-gpu", "--window-size=1440,900",
          "--no-first-run", "--disable-extensions", "--disable-background-networking")  # fmt: skip
PATIENCE_S = 60.0


class Browser:
    """One page of a real browser. Scripts run in it like those of the page's user."""

    def __init__(self, profile: Path) -> None:
        to_browser, ours = os.pipe()
        from_browser, theirs = os.pipe()
        # The browser takes numbers 3 and 4; these two must not be among them.
        high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (to_browser, theirs)]
        self._write, self._read, self._rest, self._number = ours, from_browser, b"", 0
        self.said: list[str] = []  # errors and what scripts print
        self._process = subprocess.Popen(
            [find_browser(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(3, 4), preexec_fn=lambda: [os.dup2(one, at) for at, one in enumerate(high, 3)],
        )  # fmt: skip
        for descriptor in (to_browser, theirs, *high):
            os.close(descriptor)
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def call(self, method: str, **params: object) -> dict:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._receive(deadline)
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                return found["result"]

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(text)
        if found.get("method") == "Runtime.exceptionThrown":
            details = found["params"]["exceptionDetails"]
            self.said.append(str(details.get("exception", {}).get("description", details["text"])))
        elif (
            found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error"
        ):
            self.said.append(found["params"]["entry"]["text"])
        elif found.get("method") == "Runtime.consoleAPICalled":
            self.said += [str(one.get("value", one)) for one in found["params"]["args"]]
        return found

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def open(self, address: str) -> None:
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> object:
        """What an expression, or a promise, comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> object:
        """The first true value of an expression."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = self.run(condition)
            except AssertionError:
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"in vain: {condition}; {self.said}"
            time.sleep(0.03)

    def drag(self, x: float, to_x: float, y: float) -> None:
        for kind, at in (
            ("mousePressed", x),
            ("mouseMoved", (x + to_x) / 2),
            ("mouseMoved", to_x),
            ("mouseReleased", to_x),
        ):
            self.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", clickCount=1,
                      buttons=1)  # fmt: skip

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))
