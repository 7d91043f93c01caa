"""Each message is checked by a validator that is built anew for it.

As in PrefectHQ/prefect issue 15047 and taskiq-python/taskiq issue 281."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "built again and again"
LINE = "read_orders"
TWIN, NEEDS = True, "pydantic"

if __name__ == "__main__":
    from loop import FIXED, until_over
    from pydantic import BaseModel, TypeAdapter

    class Order(BaseModel):
        number: int
        amounts: list[float]

    KEPT = TypeAdapter(list[Order])

    def read_orders(message: list[dict[str, object]]) -> list[Order]:
        adapter = KEPT if FIXED else TypeAdapter(list[Order])
        return adapter.validate_python(message)

    def add_up(message: list[dict[str, object]]) -> float:
        return sum(sum(order.amounts) for order in read_orders(message))

    for step in until_over():
        add_up([{"number": step, "amounts": [1.5, 2.5]}, {"number": step + 1, "amounts": [3.0]}])
