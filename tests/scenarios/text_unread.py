"""Messages for a log that is switched off are made all the same.

As in reviews that ask for `isEnabledFor` or arguments in place of f-strings with pformat."""

from __future__ import annotations

RULE, CAUSE = "places", "isEnabledFor"
LINE = "describe"
TWIN = True

if __name__ == "__main__":
    import logging
    import pprint

    from loop import FIXED, burn, until_over

    log = logging.getLogger("shop")

    def describe(order: dict[str, object]) -> str:
        return pprint.pformat(order, width=60)

    def handle(order: dict[str, object]) -> None:
        if not FIXED:
            log.debug(f"order {describe(order)}")
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("order %s", describe(order))
        burn(0.0005)

    for step in until_over():
        lines = [{"name": f"s{at}", "count": at, "tags": ["a", "b"]} for at in range(12)]
        handle({"id": step, "lines": lines})
