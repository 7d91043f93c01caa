"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from sonde import words


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 µs"), (999_900, "1.00 ms"), (12_345_678, "12.3 ms"),
     (123e6, "123 ms"), (1.5e9, "1.50 s"), (59.94e9, "59.9 s"), (59.96e9, "1m00s"),
     (76e9, "1m16s"), (3599.6e9, "1h00m"), (3.12 * 3600e9, "3h07m"), (100 * 3600e9, "100h00m")],
)  # fmt: skip
def test_a_duration_has_three_significant_digits_or_minutes_as_people_say_them(
    time_ns: float, shown: str
) -> None:
    assert words.show_duration(time_ns) == shown


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [
        (0, "0ms"),
        (431e6, "431ms"),
        (12.34e9, "12.3s"),
        (90e9, "1m30s"),
        (125e9, "2m05s"),
        (11220e9, "3h07m"),
    ],
)
def test_a_short_duration_has_at_most_seven_characters(time_ns: float, shown: str) -> None:
    assert words.show_duration_short(time_ns) == shown and len(shown) <= 7


def test_a_moment_is_shown_in_utc() -> None:
    assert words.show_moment(1_900_000_000 * 10**9 + 999_999_999) == "2030-03-17T17:46:40Z"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (-2048, "-2 KiB"), (3.25 * 2**20, "3.25 MiB"),
     (5 * 2**50, "5120 TiB"), (None, "\N{EN DASH}")],
)  # fmt: skip
def test_a_size_has_its_unit(count: float | None, shown: str) -> None:
    assert words.show_bytes(count) == shown


def test_a_rate_says_per_what() -> None:
    assert words.show_bytes(1536, "/s") == "1.5 KiB/s"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0.0K"), (45 * 2**20, "45M"), (1.5 * 2**30, "1.5G"), (2**40, "1024G")],
)
def test_a_short_size_has_at_most_five_characters(count: float, shown: str) -> None:
    assert words.show_bytes_short(count) == shown and len(shown) <= 5


@pytest.mark.parametrize(
    ("count", "shown"), [(None, ""), (0, ""), (999, "999"), (470_000, "470 k"), (7e9, "7 G")]
)
def test_a_large_count_has_three_significant_digits(count: int | None, shown: str) -> None:
    assert words.show_count(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.0, "3"), (-1234567.0, "-1,234,567"), (0.1234567, "0.123457"), (float("nan"), "nan"),
     (float("-inf"), "-inf"), (2.0**60, "1.15292e+18")],
)  # fmt: skip
def test_a_number_is_whole_if_it_can_be(value: float, shown: str) -> None:
    assert words.show_number(value) == shown


def test_a_share_of_nothing_is_no_error() -> None:
    assert (words.show_share(1, 0), words.find_pct(1, 0)) == ("\N{EN DASH}", 0.0)
    assert (words.show_share(1, 3), words.show_pct(100 / 3)) == ("33.3", "33.3 %")
    assert words.show_pct(None) == "\N{EN DASH}"


def test_a_bar_is_exact_to_an_eighth() -> None:
    assert words.show_bar(1, 1, 3) == "███"
    assert words.show_bar(5, 16, 2) == "▋"
    assert words.show_bar(0, 1, 3) == words.show_bar(1, 0, 3) == ""


def test_a_curve_goes_from_the_least_to_the_greatest() -> None:
    assert words.show_curve([1.0, None, 3.0, 2.0, float("nan")]) == "▁ █▄ "
    assert words.show_curve([2.0, 2.0]) == "▁▁"
    assert words.show_curve([None]) == ""


@pytest.mark.parametrize(
    ("text", "shown"), [("café", "café"), ("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"),
                        ("\ud800", "\\ud800")],
)  # fmt: skip
def test_a_name_cannot_draw_on_the_terminal(text: str, shown: str) -> None:
    assert words.clean(text) == shown


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "/a/train.py", "--lr", "1"], "train.py"),
        (["/usr/bin/python3", "-u", "-X", "dev", "-m", "pkg.train", "x"], "pkg.train"),
        (["python", "-c", "print(1)"], "-c"),
        (["python"], "python"),
        (["/opt/bin/gunicorn", "-w", "3", "app:app"], "gunicorn"),
        (["/usr/bin/python3", "/opt/bin/gunicorn", "-w", "3"], "gunicorn"),
        (None, "python"),
    ],
)
def test_a_program_is_called_by_its_script_or_module(argv: object, name: str) -> None:
    assert words.name_program(argv) == name


def test_ranges_are_short_and_things_are_counted() -> None:
    assert words.show_ranges([3, 1, 2, 7, 9, 10, 1]) == "1-3, 7, 9-10"
    assert words.show_ranges(range(0, 40, 2), most=4) == "0, 2, 4, …, 38"
    assert [words.count_things(n, "process") for n in (1, 2)] == ["1 process", "2 processes"]
    assert words.count_things(1023, "rank") == "1,023 ranks"


def test_a_command_has_neither_its_interpreter_nor_flags_of_that() -> None:
    for command in (
        "python train.py 3",
        "/usr/bin/python3.11 -u /job/train.py 3",
        "python -B -u train.py 3",
    ):
        assert words.shorten_command(command) == "train.py 3"
    assert words.shorten_command("python -m shop") == "python -m shop"
