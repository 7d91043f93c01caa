"""Python's own statistics: pstats, snakeviz, gprof2dot, flameprof."""

from __future__ import annotations

from typing import IO

from sonde.analysis.profile import Place, Profile
from sonde.session import pstats_file

SUFFIX = ".pstats"
TEXT = False
IN_ORDER = False  # whether it needs the order of time
OPEN = "python -m pstats {file}, or snakeviz {file}"


def write(profile: Profile, file: IO[bytes]) -> None:
    """Write statistics; counts are the samples that have a function on their stack."""
    stats = pstats_file.summarise(
        (
            [_name(place) for place in profile.path(stack.frames)],
            stack.samples[profile.by],
            stack.ns[profile.by],
        )
        for stack in profile.weighed
    )
    file.write(pstats_file.dump(stats))


def _name(place: Place) -> pstats_file.Function:
    return place.file or "~", place.line, place.func
