"""A table of one's own: record it, then ask it, in one program.

python examples/own_table.py
"""

import math
import random
from dataclasses import dataclass

import sonde


@dataclass
class Batch:
    """One training batch."""

    step: int
    stage: str
    loss: float = sonde.column("mean over the batch")
    grad_norm: float | None = sonde.column("before clipping; missing in evaluation")


emit = sonde.table(Batch)  # the table job.batch


def train(steps: int) -> None:
    for step in range(steps):
        loss = math.exp(-step / 300) + random.random() / 10
        emit(step, "train", loss, random.random())
        if step % 10 == 0:
            emit(step, "eval", loss * 1.1, None)


if __name__ == "__main__":
    folder = sonde.start()
    train(1000)
    sonde.stop()
    sql = """
        SELECT stage, COUNT(*) AS batches, ROUND(AVG(loss), 3) AS mean_loss, MAX(grad_norm) AS norm
        FROM job.batch GROUP BY stage ORDER BY stage
    """
    for row in sonde.open(folder).query(sql).to_pylist():
        print(row)
