"""The report as text: the statistics as they are printed, and report.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sonde.advice.finding import show_evidence
from sonde.words import clean, show_bytes, show_pct

Report = Mapping[str, Any]
_RULE = "=" * 67
_WORDS = {"most": "MOST", "several": "SEVERAL", "a little": "A LITTLE", "none": "NO"}
_SPREAD = (("max", "max"), ("min", "min"), ("mean", "average"), ("std", "standard deviation"),
           ("median", "median"), ("p80", "80th percentile"))  # fmt: skip
_VOLUMES = (("Disk read", "read_bytes"), ("Disk write", "written_bytes"),
            ("Network inbound", "received_bytes"), ("Network outbound", "sent_bytes"))  # fmt: skip


def say_pattern(pattern: str, votes: str) -> str:
    """Return a vote in the words of OpenPAI's profiler."""
    return f"There is {_WORDS[votes]} sample showing that '{pattern}'"


def say_statistics(numbers: Report) -> Iterator[str]:
    """Yield the statistics as the original prints them, for every GPU."""
    yield "CPU (100 % is one processor)"
    yield from _describe_spread(numbers["cpu_pct"], show_pct)
    yield _RULE
    yield "Memory"
    yield from _describe_spread(numbers["memory_used_bytes"], show_bytes)
    yield f"  {'total':<34}{show_bytes(numbers['memory_total_bytes'])}"
    yield _RULE
    for label, found in _list_volumes(numbers):
        yield label
        yield f"  {'max':<34}{show_bytes(found['max_bytes_s'], '/s')}"
        yield f"  {'min without zero':<34}{_show_least(found)}"
        yield f"  {'total volume':<34}{show_bytes(found['volume_bytes'])}"
    yield _RULE
    yield f"Number of GPUs: {len(numbers['gpus'])}"
    for gpu in numbers["gpus"]:
        yield f"GPU {gpu['gpu']}: {gpu['name'] or 'unknown'}"
        yield f"  {'peak of memory':<34}{show_pct(gpu['memory_pct']['max'])}"
        yield from _describe_spread(gpu["util_pct"], show_pct, "utilization, ")


def _list_volumes(numbers: Report) -> Iterator[tuple[str, Report]]:
    others = f", {numbers['network_of']}" if numbers["network_of"] else ""
    for label, key in _VOLUMES:
        yield label + (others if label.startswith("Network") else ""), numbers[key]


def _show_least(found: Report) -> str:
    """Show the lowest rate that is not zero; `none` if all are zero."""
    if found["min_without_zero_bytes_s"] is None and found["volume_bytes"] is not None:
        return "none"
    return show_bytes(found["min_without_zero_bytes_s"], "/s")


def _describe_spread(spread: Report, show: Any, prefix: str = "") -> Iterator[str]:
    for key, label in _SPREAD:
        yield f"  {prefix + label:<34}{show(spread[key])}"


def say_findings(report: Report) -> Iterator[str]:
    """Yield the findings: verdict first, then the evidence, then the next step."""
    findings = report["advice"]["findings"]
    if not findings:
        yield report["advice"]["summary"]
    for finding in findings:
        who = f" ({', '.join(finding['who'])})" if finding["who"] else ""
        yield f"{finding['severity'].upper()}: {finding['title']}{who}"
        yield f"  evidence  {', '.join(list_evidence(finding))}"
        if finding["line"]:
            yield f"  code      {finding['line']}"
        yield f"  why       {finding['why']}"
        yield f"  next      {finding['todo']}"


def list_evidence(finding: Report) -> list[str]:
    """Return the numbers of a finding, and how its pieces voted."""
    numbers = [show_evidence(name, value) for name, value in finding["evidence"].items()]
    votes = f"{finding['fired']} of {finding['judged']} pieces"
    if finding["lost_pct"] is not None:
        votes += f", about {finding['lost_pct']:.0f} % of the time lost"
    return [*numbers, votes]


# ---- report.md -----------------------------------------------------------------------------------


def write_markdown(report: Report) -> str:
    """Return the whole report as Markdown."""
    lines = [
        f"# {_escape(report['title'])}",
        "",
        *(f"- {_escape(line)}" for line in report["about"]),
        "",
    ]
    lines += ["## Findings", "", *_list_findings(report), *_list_patterns(report)]
    lines += ["## Statistics", "", *_make_tables(report["statistics"])]
    if report["pictures"]:
        lines += ["## Pictures", ""]
        lines += [f"![{_name(path)}]({path})" for path in report["pictures"]] + [""]
    lines += ["## What was measured, and what was not", ""]
    lines += [f"- {_escape(line)}" for line in report["missing"]] or ["- all of it"]
    return "\n".join(lines) + "\n"


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0].replace("_", " ")


def _escape(words: str) -> str:
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in clean(words))


def _list_findings(report: Report) -> Iterator[str]:
    if not report["advice"]["findings"]:
        yield _escape(report["advice"]["summary"])
        yield ""
    for finding in report["advice"]["findings"]:
        who = f" ({', '.join(finding['who'])})" if finding["who"] else ""
        yield f"### {finding['severity'].upper()}: {_escape(finding['title'] + who)}"
        yield ""
        yield f"- evidence: {_escape(', '.join(list_evidence(finding)))}"
        if finding["line"]:
            yield f"- code: {_escape(finding['line'])}"
        yield f"- why: {_escape(finding['why'])}"
        yield f"- next: {_escape(finding['todo'])}"
        yield ""


def _list_patterns(report: Report) -> Iterator[str]:
    for line in report["patterns"]:
        yield f"- {_escape(line)}"
    if report["patterns"]:
        yield ""


def list_tables(numbers: Report) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Return the statistics as tables: title, column names and rows of each."""
    heads = [label for _key, label in _SPREAD]
    rows: list[Sequence[str]] = [
        ("CPU, 100 % is one processor", *(show_pct(numbers["cpu_pct"][key]) for key, _ in _SPREAD)),
        ("memory", *(show_bytes(numbers["memory_used_bytes"][key]) for key, _ in _SPREAD)),
    ]
    for gpu in numbers["gpus"]:
        name = f"GPU {gpu['gpu']}"
        rows.append((f"{name} utilization", *(show_pct(gpu["util_pct"][k]) for k, _ in _SPREAD)))
        rows.append((f"{name} memory", *(show_pct(gpu["memory_pct"][k]) for k, _ in _SPREAD)))
    moved: list[Sequence[str]] = []
    for label, one in _list_volumes(numbers):
        most, mean = (show_bytes(one[name], "/s") for name in ("max_bytes_s", "mean_bytes_s"))
        moved.append((label, show_bytes(one["volume_bytes"]), most, _show_least(one), mean))
    return [
        ("Levels", ("", *heads), rows),
        ("Traffic", ("", "total volume", "max", "min without zero", "average"), moved),
    ]


def _make_tables(numbers: Report) -> Iterator[str]:
    for _title, heads, rows in list_tables(numbers):
        yield f"| {' | '.join(heads)} |"
        yield "|---" * len(heads) + "|"
        for row in rows:
            yield f"| {' | '.join(row)} |"
        yield ""
