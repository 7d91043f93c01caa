"""Each event becomes a dictionary with dataclasses.asdict, which copies everything below it.

As in encord-team/encord-client-python pull request 462 and PaddlePaddle/FastDeploy pull request 6714."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "asdict"
LINE = "to_dict"
TWIN = True

if __name__ == "__main__":
    import dataclasses
    import json

    from loop import FIXED, until_over

    @dataclasses.dataclass
    class Place:
        name: str
        row: int

    @dataclasses.dataclass
    class Event:
        name: str
        at: float
        tags: dict[str, str]
        places: list[Place]

        def to_dict(self) -> dict[str, object]:
            if FIXED:
                places = [{"name": place.name, "row": place.row} for place in self.places]
                return {"name": self.name, "at": self.at, "tags": self.tags, "places": places}
            return dataclasses.asdict(self)

    def send(event: Event) -> int:
        return len(json.dumps(event.to_dict()))

    tags = {f"tag {number}": "value" for number in range(20)}
    events = [Event(f"event {n}", n / 3, tags, [Place("a", n), Place("b", n)]) for n in range(500)]
    for _step in until_over():
        for event in events:
            send(event)
