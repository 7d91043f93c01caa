"""Where a step ends: who may say so, and for how long."""

from __future__ import annotations

from pathlib import Path

import sonde
from sonde.job.torch.steps import END, OPTIMIZER, ROOT, USER, Step, Steps, steps
from sonde.session import list_sessions
from support.needs import need


def make() -> tuple[Steps, list[Step]]:
    steps, ended = Steps(), []
    steps.subscribe(ended.append)
    return steps, ended


def test_steps_are_counted_and_follow_each_other() -> None:
    steps, ended = make()
    assert [steps.end(OPTIMIZER) for _ in range(3)] == [0, 1, 2]
    assert [(one.number, one.kind) for one in ended] == [(n, OPTIMIZER) for n in range(3)]
    assert ended[1].begin_ns == ended[0].end_ns


def test_without_a_listener_nothing_is_counted() -> None:
    steps = Steps()
    assert steps.end(USER) is None and steps.number == 0


def test_a_step_may_be_written_as_a_block() -> None:
    with sonde.step() as number:
        assert number == -1  # nobody counts
    ended: list[Step] = []
    listen = ended.append
    steps.subscribe(listen)
    try:
        for _ in range(3):
            with sonde.step():
                pass
    finally:
        steps.unsubscribe(listen)
    assert [one.kind for one in ended] == [USER] * 3


def test_the_users_word_silences_optimizers_and_models() -> None:
    steps, ended = make()
    steps.end(OPTIMIZER)
    for _ in range(50):
        steps.end(OPTIMIZER)
        steps.end(ROOT)
    ended.clear()
    for _ in range(50):
        steps.end(USER)
        steps.end(OPTIMIZER)
        steps.end(ROOT)
    assert [one.kind for one in ended] == [USER] * 50


def test_a_user_who_says_nothing_any_more_does_not_silence_for_ever() -> None:
    steps, ended = make()
    for _ in range(10):
        steps.end(USER)
        for _ in range(5):
            steps.end(OPTIMIZER)
    before = len(ended)
    for _ in range(100):  # evaluation, say
        steps.end(ROOT)
    after = len(ended)
    assert before == 10
    assert 0 < 100 - (after - before) <= 16 + 4 * 5
    steps.end(USER)
    steps.end(ROOT)
    assert [one.kind for one in ended[after:]] == [USER]


def test_many_ends_between_two_words_are_no_reason_to_give_the_user_up() -> None:
    steps, ended = make()
    steps.end(USER)
    for _ in range(16):
        steps.end(OPTIMIZER)
    steps.end(USER)
    for _ in range(60):
        steps.end(OPTIMIZER)
    assert [one.kind for one in ended] == [USER, USER]


def test_the_end_of_the_recording_is_never_silenced() -> None:
    steps, _ = make()
    steps.end(USER)
    assert steps.end(END) == 1


def test_step_does_nothing_where_nothing_is_recorded() -> None:
    assert sonde.step() == -1


LOOP = """
import sonde, torch
sonde.start(collector="off")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    print(sonde.step())
"""


def test_the_program_says_where_its_steps_end(run_torch, root: Path) -> None:
    need("torch")
    done = run_torch(LOOP)
    # Before the first word of the user, optimizers end steps: three of them.
    assert done.stdout.split() == ["3", "4", "5", "6", "7"]
    (session,) = list_sessions(str(root))
    rows = (
        sonde.open(session.folder)
        .query("SELECT step, ended_by FROM python.torch_step WHERE ended_by <> 'end' ORDER BY step")
        .to_pylist()
    )
    assert [row["ended_by"] for row in rows] == ["optimizer"] * 3 + ["user"] * 5
