"""What a page may ask of a live job, where its server was started with --allow-steer."""

from __future__ import annotations

from sonde import settings
from sonde.errors import ConfigError
from sonde.session import Session, steering
from sonde.web.answer import PageAnswer
from sonde.web.opened import Opened
from sonde.web.own_process import run_module
from sonde.web.questions import Asked, Questions

REFUSED = "this server only reads; `sonde ui --allow-steer` starts one that may steer the job"
_WAIT_S = 5.0
_TIMEOUT_S = 60.0


def _list_settings(opened: Opened, _asked: Asked) -> PageAnswer:
    """Return what can be changed while the job runs; of several processes, as the first has it."""
    return PageAnswer({"settings": _describe(steering.select_alive(opened.sessions)[0])})


def _configure(opened: Opened, asked: Asked) -> PageAnswer:
    """Change one setting of every live process."""
    if asked.get("key") not in settings.list_keys():
        raise ConfigError(f"there is no setting {asked.get('key', '')!r}")
    alive = steering.select_alive(opened.sessions)
    for session in alive:
        steering.configure(session, {asked["key"]: asked.get("value", "")}, _WAIT_S)
    return PageAnswer({"settings": _describe(alive[0])})


def _describe(session: Session) -> list[dict[str, str]]:
    values = session.read_config()
    return [
        {"key": key.name, "value": key.show(values[key.name]), "doc": key.doc}
        for key in settings.list_keys().values()
        if key.changeable and key.name in values
    ]


def _take_snapshot(opened: Opened, _asked: Asked) -> PageAnswer:
    return _ask_command("snapshot", _name_alive(opened))


def _look(opened: Opened, _asked: Asked) -> PageAnswer:
    return _ask_command("stacks", _name_alive(opened), "--locals", "--tasks", "--each")


def _name_alive(opened: Opened) -> str:
    """Return every live process of the page as one target: its own may mean the first alone."""
    return ",".join(one.id for one in steering.select_alive(opened.sessions))


def _ask_command(*words: str) -> PageAnswer:
    """Return what a command of ours says."""
    too_late = f"the job did not answer in {_TIMEOUT_S:g} s"
    text = run_module("sonde", list(words), _TIMEOUT_S, too_late).decode("utf-8", "replace")
    return PageAnswer({"text": text}, [f"-- `sonde {' '.join(words)}` says the same"])


ACTS: Questions = {
    "settings": _list_settings,
    "configure": _configure,
    "snapshot": _take_snapshot,
    "look": _look,
}
