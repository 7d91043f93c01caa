"""The machine, and the recorded processes as the kernel sees them."""

from __future__ import annotations

import os

from sonde.session.schema import column, f64, i64, text


class Cpu:
    """How the machine's processors were used since the previous row."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row", "ns")
    cores: i64 = column("processors online")
    busy_pct: f64 = column("busy time of all processors together; counted in ticks of 10 ms", "%")
    user_pct: f64 = column("busy in programs", "%")
    system_pct: f64 = column("busy in the kernel", "%")
    iowait_pct: f64 = column("idle while I/O was pending", "%")
    steal_pct: f64 = column("time taken by other virtual machines", "%")
    load1: f64 = column("load average, 1 minute")
    load5: f64 = column("load average, 5 minutes")
    load15: f64 = column("load average, 15 minutes")
    max_core_pct: f64 | None = column("busy_pct of the busiest processor", "%")
    running: i64 | None = column("threads that were running or ready to run at that moment")
    blocked: i64 | None = column("threads that were waiting for I/O at that moment")
    switches: i64 | None = column("context switches in the interval")


class Core:
    """How each processor was used since the previous row."""

    SCHEMA = "system"
    # Enough for some minutes of rows, even on a large machine.
    RING_BYTES = 2**18 * max(1, min(8, (os.cpu_count() or 1) // 16))
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row", "ns")
    core: i64 = column("number of the processor")
    busy_pct: f64 = column("busy time; counted in ticks of 10 ms", "%")
    user_pct: f64 = column("busy in programs", "%")
    system_pct: f64 = column("busy in the kernel", "%")
    iowait_pct: f64 = column("idle while I/O was pending", "%")


class Memory:
    """The machine's memory."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    total_bytes: i64 = column("installed memory", "bytes")
    available_bytes: i64 = column("memory that could be allocated without swapping", "bytes")
    used_bytes: i64 = column("total less available memory", "bytes")
    swap_total_bytes: i64 = column("swap space", "bytes")
    swap_used_bytes: i64 = column("swap space in use", "bytes")
    interval_ns: i64 | None = column("time since the previous row; NULL in the first", "ns")
    cached_bytes: i64 | None = column("cached files and buffers", "bytes")
    dirty_bytes: i64 | None = column(
        "memory waiting to be written to disk, or being written", "bytes"
    )
    swap_in_bytes: i64 | None = column("read from swap in the interval", "bytes")
    swap_out_bytes: i64 | None = column("written to swap in the interval", "bytes")
    major_faults: i64 | None = column("pages that had to be read from disk in the interval")


class Disk:
    """What each disk did since the previous row.

    Only physical disks are listed: partitions, LVM and RAID would count the same data twice."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row", "ns")
    device: text = column("name of the disk: nvme0n1")
    read_bytes: i64 = column("data read in the interval", "bytes")
    written_bytes: i64 = column("data written in the interval", "bytes")
    reads: i64 = column("read requests completed in the interval")
    writes: i64 = column("write requests completed in the interval")
    busy_pct: f64 = column(
        "share of time with a request pending; a disk with many queues can do more even at 100 %",
        "%",
    )


class Network:
    """What each network interface received and sent since the previous row.

    Interfaces are those of the watched process's own network namespace, as in a container. Each
    namespace appears once, however many of its processes are recorded."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row", "ns")
    interface: text = column("name of the interface; mlx5_0/1 for an RDMA port")
    kind: text = column(
        "loopback, ethernet, wireless, virtual (a bridge, a tunnel, a container's interface), rdma "
        "or other"
    )
    received_bytes: i64 = column("data received in the interval", "bytes")
    sent_bytes: i64 = column("data sent in the interval", "bytes")
    received_packets: i64 = column("packets received in the interval")
    sent_packets: i64 = column("packets sent in the interval")
    errors: i64 = column("damaged packets in the interval, received and sent")
    dropped: i64 = column("packets dropped in the interval")
    namespace: i64 | None = column("inode of the network namespace; NULL for rdma")


class Pressure:
    """How long work was stalled since the previous row, as the kernel measures it (PSI)."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row", "ns")
    resource: text = column("resource that was short: cpu, memory or io")
    scope: text = column("machine, or cgroup (of the watched process)")
    some_pct: f64 = column("share of time in which at least one thread waited for it", "%")
    full_pct: f64 | None = column(
        "share of time in which all threads that were not idle waited for it", "%"
    )


class Cgroup:
    """The cgroup of the watched process. All processes of one cgroup have the same numbers."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 | None = column("time since the previous row; NULL in the first", "ns")
    version: i64 = column("cgroup version: 1 or 2; 0 if there is no cgroup")
    path: text | None = column("path of the cgroup")
    user_pct: f64 | None = column(
        "CPU time in programs, in percent of one processor, to the microsecond", "%"
    )
    system_pct: f64 | None = column("CPU time in the kernel, in percent of one processor", "%")
    throttled_pct: f64 | None = column(
        "share of the limit's periods in which it was throttled; NULL without a limit", "%"
    )
    cpu_limit: f64 | None = column("processors it may use at a time; NULL without a limit")
    allowed_cores: i64 | None = column("processors that the process may run on")
    memory_bytes: i64 | None = column("memory in use, including cached files", "bytes")
    memory_limit_bytes: i64 | None = column("memory it may use; NULL without a limit", "bytes")
    memory_peak_bytes: i64 | None = column("most memory it ever used", "bytes")
    oom_kills: i64 | None = column("processes killed for lack of memory in the interval")
    read_bytes: i64 | None = column("data read from devices in the interval", "bytes")
    written_bytes: i64 | None = column("data written to devices in the interval", "bytes")


class Process:
    """The watched process and every descendant, as the kernel sees them.

    If there are many processes, values that take long to read are not in every row: they are NULL
    in between, and amounts cover the time since the last row that had them."""

    SCHEMA = "system"
    RING_BYTES = 2**21
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the previous row, or since the process started", "ns")
    user_pct: f64 = column("CPU time in the program, in percent of one processor. user_pct and "
                           "system_pct add up to the process's CPU clock, which lags by at "
                           "most one tick of the scheduler: 1 to 10 ms",
                           "%")  # fmt: skip
    system_pct: f64 = column(
        "CPU time in the kernel, in percent of one processor; accurate to 10 ms", "%"
    )
    rss_bytes: i64 = column("resident memory", "bytes")
    vms_bytes: i64 = column("address space", "bytes")
    threads: i64 = column("number of threads")
    process: i64 = column("pid of the process")
    parent: i64 = column("pid of its current parent")
    depth: i64 = column("0 is the watched process, 1 its children, …, by the parent first seen")
    name: text = column("name in the kernel, cut at 15 characters")
    state: text = column("R running, S sleeping, D waiting for I/O, T stopped, Z ended")
    run_wait_pct: f64 | None = column(
        "time that threads were ready to run but had no processor; 100 is one thread", "%"
    )
    pss_bytes: i64 | None = column("proportional share of memory: shared pages count in part; "
                                   "read every half minute at most", "bytes")  # fmt: skip
    swap_bytes: i64 | None = column("memory swapped out", "bytes")
    fds: i64 | None = column("open files")
    switches: i64 | None = column(
        "context switches in which a thread gave up its processor voluntarily"
    )
    forced_switches: i64 | None = column(
        "context switches in which a processor was taken from a thread"
    )
    major_faults: i64 = column("pages that had to be read from disk in the interval")
    read_bytes: i64 | None = column("data read from disks in the interval, including what "
                                    "unseen children read before they ended", "bytes")  # fmt: skip
    written_bytes: i64 | None = column(
        "data that it caused to be written to disks in the interval", "bytes"
    )
    asked_read_bytes: i64 | None = column(
        "data returned by read calls in the interval, from anywhere", "bytes"
    )
    asked_write_bytes: i64 | None = column(
        "data passed to write calls in the interval, to anywhere", "bytes"
    )
    waits_in: text | None = column(
        "function of the kernel that its main thread sleeps in, as pipe_write; NULL if the process "
        "used its CPU since the row before, or nobody may know"
    )


class Gpu:
    """Each GPU of the machine, as NVIDIA's management library (NVML) sees it."""

    SCHEMA = "system"
    RING_BYTES = 2**19
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 | None = column("time since the previous row; NULL in the first", "ns")
    gpu: i64 = column("index of the GPU")
    name: text | None = column("model of the GPU")
    uuid: text | None = column("unique id of the GPU, the same after a restart")
    util_pct: f64 | None = column(
        "share of time in which a kernel ran, over the last second or less", "%"
    )
    memory_util_pct: f64 | None = column(
        "share of time in which its memory was read or written", "%"
    )
    memory_used_bytes: i64 | None = column("memory in use by all processes", "bytes")
    memory_total_bytes: i64 | None = column("total memory", "bytes")
    power_w: f64 | None = column("power draw", "W")
    power_limit_w: f64 | None = column("power limit", "W")
    sm_clock_mhz: i64 | None = column("clock of its multiprocessors", "MHz")
    sm_clock_max_mhz: i64 | None = column("highest clock of its multiprocessors", "MHz")
    memory_clock_mhz: i64 | None = column("clock of its memory", "MHz")
    temperature_c: i64 | None = column("temperature", "°C")
    throttle: text | None = column(
        "reasons for lowered clocks, joined by +: app_clocks, sw_power_cap, hw_slowdown, "
        "sync_boost, sw_thermal, hw_thermal, hw_power_brake, display_clocks; NULL if there are none"
    )
    pcie_gen: i64 | None = column("PCIe generation of its link now; lower while the GPU is idle")
    pcie_gen_max: i64 | None = column("highest PCIe generation that GPU and machine support")
    pcie_width: i64 | None = column("PCIe lanes of its link now")
    pcie_width_max: i64 | None = column("most PCIe lanes that GPU and machine support")
    pcie_received_bytes: i64 | None = column(
        "data received by the GPU over PCIe in the interval", "bytes"
    )
    pcie_sent_bytes: i64 | None = column("data sent by the GPU over PCIe in the interval", "bytes")
    ecc_corrected: i64 | None = column("corrected memory errors in the interval")
    ecc_uncorrected: i64 | None = column("uncorrected memory errors in the interval")


class GpuProcess:
    """GPU memory by process: the watched process, its descendants, and all others together."""

    SCHEMA = "system"
    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    gpu: i64 = column("index of the GPU")
    process: i64 | None = column(
        "pid; NULL for all other processes together. In a container NVML may report the machine's "
        "pids; then a process is known by the driver that it has open, and its memory is "
        "counted among the others'"
    )
    memory_bytes: i64 | None = column("memory in use; NULL if it is unknown", "bytes")


class KernelLog:
    """What the kernel logged about memory, GPUs and disks, if its log may be read here."""

    SCHEMA = "system"
    RING_BYTES = 2**16
    SCOPE = "host"
    t_ns: i64 = column("when it was read: up to host.every after it was logged", "ns")
    number: i64 = column("the kernel's number of the message")
    kind: text = column("oom: a process was killed for memory; gpu; io: an error of a disk")
    level: text = column("how serious it is for the kernel: emergency … debug")
    message: text = column("the message, shortened to 400 characters")


ROWS = (Cpu, Core, Memory, Disk, Network, Pressure, Cgroup, Process, Gpu, GpuProcess, KernelLog)
