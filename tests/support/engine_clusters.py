"""Real engines on loopback, as small as they can be."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conftest import wait_for
from support.guarded import end_guarded, list_session, start_guarded

_START_S = 600.0  # a JVM takes its time on a busy machine


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """Processes, each in a session of its own, so that one dies with all that it has started."""

    WORKERS: tuple[str, ...]  # the groups that do the work

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self._groups = folder, dict[str, subprocess.Popen[bytes]]()
        self.env = {**os.environ, **env, "SONDE": "0"}

    def start(self, name: str, *words: str, **env: str) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._groups[name] = start_guarded(list(words), {**self.env, **env}, log, self.folder)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for the start of something; fail if a process ends instead."""
        wait_for(lambda: condition() or self._find_ended(), _START_S)
        ended = self._find_ended()
        assert not ended, self.read_log(ended)[-3000:]

    def _find_ended(self) -> str:
        return next((name for name, one in self._groups.items() if one.poll() is not None), "")

    def __enter__(self) -> Cluster:
        try:
            self.begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        raise NotImplementedError

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def read_cpu_s(self, *names: str) -> float:
        """The processor time that these groups have used."""
        total = 0
        for pid in (pid for name in names for pid in list_session(self._groups[name].pid)):
            try:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += int(words[11]) + int(words[12])
        return total / os.sysconf("SC_CLK_TCK")

    def is_at_rest(self) -> bool:
        """Whether those that do the work have nothing to do, but to say that they are there."""
        before = self.read_cpu_s(*self.WORKERS)
        time.sleep(5)
        return self.read_cpu_s(*self.WORKERS) - before < 1

    def kill(self, name: str) -> None:
        end_guarded(self._groups.pop(name))

    def close(self) -> None:
        for name in list(self._groups):
            self.kill(name)


class SparkCluster(Cluster):
    """A master, two workers with a core each, and a Connect server."""

    WORKERS = ("worker1", "worker2")

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        super().__init__(folder, {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
                                  "SPARK_DAEMON_MEMORY": "256m",
                                  "SPARK_WORKER_DIR": str(folder / "work")})  # fmt: skip
        self._bin = home / "bin"

    def begin(self) -> None:
        master, port = find_port(), find_port()
        url, run = f"spark://127.0.0.1:{master}", str(self._bin / "spark-class")
        self.address = f"sc://127.0.0.1:{port}"
        self.start("master", run, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                   "--port", str(master), "--webui-port", "0")  # fmt: skip
        self.wait(lambda: can_connect(master))
        for name in self.WORKERS:
            self.start(name, run, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                       "--cores", "1", "--memory", "600m", "--webui-port", "0", url)  # fmt: skip
        settings = {
            "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port), "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "INFO",
            # A task in a loop of generated code does not look whether it is to end.
            "spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "5s",
        }  # fmt: skip
        self.start("connect", str(self._bin / "spark-submit"), "--driver-memory", "700m",
                   "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
                   "--master", url, *(word for name, value in settings.items()
                                      for word in ("--conf", f"{name}={value}")),
                   "spark-internal", SPARK_DAEMON_MEMORY="700m")  # fmt: skip
        self.wait(lambda: can_connect(port))
        # Both workers take part: a query that began with one would not miss the other.
        self.wait(lambda: self.read_log("connect").count("Registered executor") >= 2)

    def count_begun(self) -> int:
        return len(self._list_begun())

    def is_busy(self) -> bool:
        """Whether a worker has been at the same task for a while."""
        begun = self._list_begun()
        time.sleep(3)
        return bool(begun) and self._list_begun() == begun

    def _list_begun(self) -> list[str]:
        return re.findall(r"Starting task .*executor (\d+),", self.read_log("connect"))

    def kill_worker(self) -> None:
        """Kill the worker that was given the last task."""
        number = self._list_begun()[-1]
        for name in self.WORKERS:
            if re.search(rf"launch executor \S+/{number} ", self.read_log(name)):
                self.kill(name)
                self.lost = number

    def has_noticed(self) -> bool:
        return f"Lost executor {self.lost}" in self.read_log("connect")


class RayCluster(Cluster):
    """Two nodes with a processor each. Ray listens on all interfaces: whoever connects needs a token,
    which is this cluster's own."""

    WORKERS = ("head", "node")

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        super().__init__(folder, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
                                  "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"})  # fmt: skip

    def begin(self) -> None:
        # Ray gives the ports from 10002 to 19999 to its workers.
        head, port = [one for one in (find_port() for _ in range(99)) if one > 19999][:2]
        self.address = f"ray://127.0.0.1:{port}"
        run = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block",
               "--object-store-memory=150000000", "--disable-usage-stats"]  # fmt: skip
        self.start("head", *run, "--head", f"--port={head}", f"--ray-client-server-port={port}",
                   "--include-dashboard=false")  # fmt: skip
        self.wait(lambda: can_connect(port) and "Ray runtime started" in self.read_log("head"))
        self.start("node", *run, f"--address=127.0.0.1:{head}")
        self.wait(lambda: "Ray runtime started" in self.read_log("node"))
        self.wait(lambda: self._list_nodes().count("True") == 2)  # and it takes clients

    def count_begun(self) -> int:
        """The seconds of processor time that the node that will be killed has used."""
        return int(self.read_cpu_s("node"))

    def is_busy(self) -> bool:
        """Whether the node works, and not only says now and then that it is there."""
        before = self.count_begun()
        time.sleep(3)
        return self.count_begun() > before

    def kill_worker(self) -> None:
        self.kill("node")

    def has_noticed(self) -> bool:
        return "False" in self._list_nodes()

    def _list_nodes(self) -> str:
        """Whether each node lives, as a client is told."""
        code = "import ray, sys; ray.init(sys.argv[1]); print([n['Alive'] for n in ray.nodes()])"
        words = [sys.executable, "-c", code, self.address]
        return subprocess.run(words, env=self.env, capture_output=True, text=True).stdout


def has_java() -> bool:
    return shutil.which("java") is not None
