"""Ten thousand threads write one table at once: no row is lost without being counted.

python tests/stress/threads.py [THREADS]"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.many_threads import check_threads

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count = check_threads(int(sys.argv[1]) if sys.argv[1:] else 10_000, Path(folder) / "sonde")
    print(f"{count} threads, every row accounted for")
