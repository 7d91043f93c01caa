"""Print the path of an installed CPython of the version named, or fail."""

import glob
import os
import shutil
import subprocess
import sys

version = sys.argv[1]
# Where tests/pythons/get.sh has put those that are not installed.
fetched = os.environ.get("TEST_PYTHONS", os.path.join(os.path.dirname(__file__), "../../.pythons"))
pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
candidates = [
    shutil.which(f"python{version}"),
    *glob.glob(f"{fetched}/{version}/bin/python{version}"),
    *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}")),
    sys.executable,
]
for path in filter(None, candidates):
    found = subprocess.run(
        [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags, sys.executable)"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    name, _, executable = found.stdout.strip().partition(" ")
    if name == version:
        print(executable)  # not the path itself, which may be a script that chooses a Python
        sys.exit(0)
sys.exit(1)
