"""A page is made from a template that is compiled each time.

As in pallets/flask issue 2402 and getmoto/moto issue 280."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "compiled again"
LINE = "render"
TWIN, NEEDS = True, "jinja2"

if __name__ == "__main__":
    import jinja2
    from loop import FIXED, until_over

    TEXT = "{% for row in rows %}<p>{{ row.name|upper }}: {% if row.on %}on{% else %}off{% endif %}</p>{% endfor %}"
    environment = jinja2.Environment()
    KEPT = environment.from_string(TEXT)

    def render(rows: list[dict[str, object]]) -> str:
        template = KEPT if FIXED else environment.from_string(TEXT)
        return template.render(rows=rows)

    for step in until_over():
        render([{"name": "lamp", "on": step % 2}] * 5)
