"""IPython and Jupyter: `%load_ext sonde`; `%%sonde` profiles a cell, `%sonde query` asks."""

from __future__ import annotations

from typing import Any

import sonde

_USAGE = "%sonde query TARGET SELECT …   or   %sonde advise TARGET   or   %%sonde above a cell"


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics; IPython calls this for `%load_ext sonde`."""
    magics = _Magics(ipython)
    ipython.register_magic_function(magics.ask, "line", "sonde")
    ipython.register_magic_function(magics.profile_cell, "cell", "sonde")


class _Magics:
    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython

    def ask(self, line: str) -> Any:
        """Answer `%sonde query TARGET SQL` with a DataFrame, or with an Arrow table where there is
        no pandas; and `%sonde advise TARGET` with an Advice."""
        word, _, rest = line.strip().partition(" ")
        target, _, sql = rest.strip().partition(" ")
        if word == "advise" and target:
            return sonde.advise(target)
        if word != "query" or not sql.strip():
            raise sonde.Error(f"this is not understood: %sonde {line.strip()}; write {_USAGE}")
        rows = sonde.open(target).query(sql)
        try:
            return rows.to_pandas()
        except ImportError:
            return rows

    def profile_cell(self, line: str, cell: str) -> Any:
        """Run a cell and return its profile; the words behind `%%sonde` are tags."""
        with sonde.profile(tags=line.split()) as run:
            done = self._ipython.run_cell(cell)
        if not done.success:
            return None  # IPython has shown the error
        return run.result()
