"""The machine, and the recorded processes as the kernel sees them."""

from __future__ import annotations

import os

from sonde.session.schema import column, f64, i64, text


class Cpu:
    """How the machine's processors were used since the row before."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    cores: i64 = column("processors online")
    busy_pct: f64 = column("not idle, of all processors together; counted in ticks of 10 ms", "%")
    user_pct: f64 = column("in programs", "%")
    system_pct: f64 = column("in the kernel", "%")
    iowait_pct: f64 = column("idle while I/O was under way", "%")
    steal_pct: f64 = column("taken by other virtual machines", "%")
    load1: f64 = column("load average, 1 minute")
    load5: f64 = column("load average, 5 minutes")
    load15: f64 = column("load average, 15 minutes")
    max_core_pct: f64 | None = column("busy_pct of the busiest processor", "%")
    running: i64 | None = column("threads that ran or could have, at that moment")
    blocked: i64 | None = column("threads that waited for I/O, at that moment")
    switches: i64 | None = column("context switches in the interval")


class Core:
    """How each processor was used since the row before."""

    SCHEMA = "system"
    # Enough for some minutes of rows, also of a large machine.
    RING_BYTES = 2**18 * max(1, min(8, (os.cpu_count() or 1) // 16))
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    core: i64 = column("which processor")
    busy_pct: f64 = column("not idle; counted in ticks of 10 ms", "%")
    user_pct: f64 = column("in programs", "%")
    system_pct: f64 = column("in the kernel", "%")
    iowait_pct: f64 = column("idle while I/O was under way", "%")


class Memory:
    """The machine's memory."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    total_bytes: i64 = column("installed", "bytes")
    available_bytes: i64 = column("could be had without swapping", "bytes")
    used_bytes: i64 = column("total less available", "bytes")
    swap_total_bytes: i64 = column("swap space", "bytes")
    swap_used_bytes: i64 = column("swap space in use", "bytes")
    interval_ns: i64 | None = column("time since the row before; NULL in the first", "ns")
    cached_bytes: i64 | None = column("copies of files, and buffers", "bytes")
    dirty_bytes: i64 | None = column("to be written to disk, or being written", "bytes")
    swap_in_bytes: i64 | None = column("read from swap in the interval", "bytes")
    swap_out_bytes: i64 | None = column("written to swap in the interval", "bytes")
    major_faults: i64 | None = column("pages that had to be read from disk in the interval")


class Disk:
    """What each disk did since the row before.

    Disks proper: what lies on others (partitions, LVM, RAID) would be counted twice."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    device: text = column("its name: nvme0n1")
    read_bytes: i64 = column("read in the interval", "bytes")
    written_bytes: i64 = column("written in the interval", "bytes")
    reads: i64 = column("read requests that ended in the interval")
    writes: i64 = column("write requests that ended in the interval")
    busy_pct: f64 = column("time with a request under way; one with many queues may do more", "%")


class Network:
    """What each interface received and sent since the row before.

    Interfaces are those of the watched process's own network namespace, as in a container; each
    namespace is there once, however many processes of it are recorded."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    interface: text = column("its name; of an RDMA port: mlx5_0/1")
    kind: text = column(
        "loopback, ethernet, wireless, virtual (a bridge, a tunnel, a container's own), rdma or "
        "other"
    )
    received_bytes: i64 = column("received in the interval", "bytes")
    sent_bytes: i64 = column("sent in the interval", "bytes")
    received_packets: i64 = column("packets received in the interval")
    sent_packets: i64 = column("packets sent in the interval")
    errors: i64 = column("packets that came or went damaged, in the interval")
    dropped: i64 = column("packets that were dropped, in the interval")
    namespace: i64 | None = column("which network namespace, by its inode; NULL: rdma")


class Pressure:
    """How long work stood still since the row before, as the kernel adds it up (PSI)."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    resource: text = column("what was short: cpu, memory or io")
    scope: text = column("machine, or cgroup: that of the watched process")
    some_pct: f64 = column("at least one thread stood still for it", "%")
    full_pct: f64 | None = column("all that were not idle stood still for it", "%")


class Cgroup:
    """The cgroup of the watched process. Processes of one cgroup see the same numbers."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 | None = column("time since the row before; NULL in the first", "ns")
    version: i64 = column("of its cgroup: 1 or 2; 0: there is none")
    path: text | None = column("its name")
    user_pct: f64 | None = column(
        "in programs, of one processor; counted by the kernel to the microsecond", "%"
    )
    system_pct: f64 | None = column("in the kernel, of one processor", "%")
    throttled_pct: f64 | None = column(
        "periods of the limit in which it had to wait; NULL without a limit", "%"
    )
    cpu_limit: f64 | None = column("processors it may use at a time; NULL: no limit")
    allowed_cores: i64 | None = column("processors that the process may run on")
    memory_bytes: i64 | None = column("memory in use, copies of files included", "bytes")
    memory_limit_bytes: i64 | None = column("it may use; NULL: no limit", "bytes")
    memory_peak_bytes: i64 | None = column("the most it ever used", "bytes")
    oom_kills: i64 | None = column("processes killed in the interval, for want of memory")
    read_bytes: i64 | None = column("read from devices in the interval", "bytes")
    written_bytes: i64 | None = column("written to devices in the interval", "bytes")


class Process:
    """The watched process and every descendant, as the kernel sees them.

    Where there are many of them, values that take long to get are not in every row: they are NULL
    in between, and amounts cover the time since the last row that had them."""

    SCHEMA = "system"
    RING_BYTES = 2**21
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before, or since the process started", "ns")
    user_pct: f64 = column("in the program, of one processor. Both together are the process's CPU "
                           "clock, which lags by a tick of the scheduler at most: 1 to 10 ms",
                           "%")  # fmt: skip
    system_pct: f64 = column("in the kernel, of one processor; its part is known to 10 ms", "%")
    rss_bytes: i64 = column("resident memory", "bytes")
    vms_bytes: i64 = column("address space", "bytes")
    threads: i64 = column("threads")
    process: i64 = column("which process: its pid")
    parent: i64 = column("the process that it is below now")
    depth: i64 = column("0: the watched process itself, 1: its children; in the tree as first seen")
    name: text = column("as the kernel has it, cut at 15 characters")
    state: text = column("R runs, S sleeps, D waits for I/O, T stopped, Z ended")
    run_wait_pct: f64 | None = column("threads ready to run without a processor: 100 is one", "%")
    pss_bytes: i64 | None = column("its share of memory: pages of several processes in parts; "
                                   "every half minute at most", "bytes")  # fmt: skip
    swap_bytes: i64 | None = column("swapped out", "bytes")
    fds: i64 | None = column("open files")
    switches: i64 | None = column("times that its threads gave up a processor by themselves")
    forced_switches: i64 | None = column("times that a processor was taken from them")
    major_faults: i64 = column("pages that had to be read from disk in the interval")
    read_bytes: i64 | None = column("fetched from disks in the interval; of children that ended "
                                    "unseen, too", "bytes")  # fmt: skip
    written_bytes: i64 | None = column("caused to be written to disks in the interval", "bytes")
    asked_read_bytes: i64 | None = column("read calls in the interval, from anywhere", "bytes")
    asked_write_bytes: i64 | None = column("write calls in the interval, to anywhere", "bytes")


class Gpu:
    """Each GPU of the machine, as NVIDIA's management library (NVML) sees it."""

    SCHEMA = "system"
    RING_BYTES = 2**19
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 | None = column("time since the row before; NULL in the first", "ns")
    gpu: i64 = column("its index")
    name: text | None = column("model")
    uuid: text | None = column("its own number, the same after a restart")
    util_pct: f64 | None = column("time in which a kernel ran, of the last second or less", "%")
    memory_util_pct: f64 | None = column("time in which its memory was read or written", "%")
    memory_used_bytes: i64 | None = column("memory in use, by all processes", "bytes")
    memory_total_bytes: i64 | None = column("memory it has", "bytes")
    power_w: f64 | None = column("power it draws", "W")
    power_limit_w: f64 | None = column("power it may draw", "W")
    sm_clock_mhz: i64 | None = column("clock of its processors", "MHz")
    sm_clock_max_mhz: i64 | None = column("the highest that they may have", "MHz")
    memory_clock_mhz: i64 | None = column("clock of its memory", "MHz")
    temperature_c: i64 | None = column("temperature", "°C")
    throttle: text | None = column(
        "what holds the clocks down, joined by +: app_clocks, sw_power_cap, hw_slowdown, "
        "sync_boost, sw_thermal, hw_thermal, hw_power_brake, display_clocks; NULL: nothing"
    )
    pcie_gen: i64 | None = column("generation of its link now; lower while it is idle")
    pcie_gen_max: i64 | None = column("the highest that GPU and machine can do")
    pcie_width: i64 | None = column("lanes of its link now")
    pcie_width_max: i64 | None = column("the most that GPU and machine can do")
    pcie_received_bytes: i64 | None = column("over PCIe to the GPU in the interval", "bytes")
    pcie_sent_bytes: i64 | None = column("over PCIe from the GPU in the interval", "bytes")
    ecc_corrected: i64 | None = column("memory errors that were corrected, in the interval")
    ecc_uncorrected: i64 | None = column("memory errors that were not, in the interval")


class GpuProcess:
    """Memory of each GPU by process: the watched process and its descendants, and all others."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    gpu: i64 = column("which GPU")
    process: i64 | None = column(
        "pid; NULL: all others together. In a container NVML may name the machine's pids: then all "
        "are others"
    )
    memory_bytes: i64 | None = column("memory in use", "bytes")


ROWS = (Cpu, Core, Memory, Disk, Network, Pressure, Cgroup, Process, Gpu, GpuProcess)
