"""The kernel's log, made up by a test."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from sonde.collector.sensors._files import Reader
from sonde.collector.sensors.kernel_log import Sensor
from sonde.errors import Unavailable


def make(folder: Path) -> Sensor:
    return Sensor(Reader(str(folder), str(folder), clock=lambda: 5))


def test_what_is_logged_about_memory_gpus_and_disks_is_a_row_and_nothing_else(tmp_path) -> None:
    log = tmp_path / "dev-kmsg"
    log.write_text("3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, before the recording\n")
    sensor = make(tmp_path)
    assert list(sensor.read_machine()) == []
    with log.open("a") as file:
        file.write("6,2,9,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=c189:1\n")
        file.write("3,3,9,-;Out of memory: Killed process 7 (python) total-vm:9kB\n")
        file.write("3,4,9,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
        file.write(f"11,5,9,-;blk_update_request: I/O error, dev sda {'x' * 500}\n")
    found = [values for _row, values in sensor.read_machine()]
    assert [values[:4] for values in found] == [
        (5, 3, "oom", "error"), (5, 4, "gpu", "error"), (5, 5, "io", "error")
    ]  # fmt: skip
    assert found[0][4] == "Out of memory: Killed process 7 (python) total-vm:9kB"
    assert len(str(found[2][4])) == 400
    assert list(sensor.read_machine()) == []


def test_an_hour_has_a_hundred_rows(tmp_path) -> None:
    log = tmp_path / "dev-kmsg"
    log.write_text("")
    sensor = make(tmp_path)
    assert list(sensor.read_machine()) == []
    log.write_text("".join(f"3,{n},9,-;Buffer I/O error {n}\n" for n in range(300)))
    assert len(list(sensor.read_machine())) == 100


def test_where_the_log_may_not_be_read_the_sensor_says_so(tmp_path) -> None:
    with pytest.raises(Unavailable, match=r"the kernel's log cannot be read: .*No such file"):
        list(make(tmp_path).read_machine())


def test_the_log_is_closed_with_the_sensor_without_a_complaint(tmp_path) -> None:
    """Cadences that nobody uses any more are dropped with their sensors."""
    (tmp_path / "dev-kmsg").write_text("")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert list(make(tmp_path).read_machine()) == []
        gc.collect()
    assert [one.message for one in said if one.category is ResourceWarning] == []
