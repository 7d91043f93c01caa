"""The C extension, and the hook that makes `SONDE=1` work. All else is in pyproject.toml."""

import os
import platform
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HOOK = "sonde.pth"

if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64", "arm64"):
    sys.exit(
        f"sonde runs on Linux on x86_64 and aarch64; this is {sys.platform} on {platform.machine()}"
    )
if sys.implementation.name != "cpython":
    sys.exit(f"sonde reads CPython's own structures; this is {sys.implementation.name}")


class BuildWithHook(build_py):
    """Puts the hook beside the package: site-packages is where Python looks for it."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            self.copy_file(HOOK, os.path.join(self.build_lib, HOOK), preserve_mode=False)

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + [os.path.join(self.build_lib, HOOK)]


setup(
    cmdclass={"build_py": BuildWithHook},
    ext_modules=[
        Extension(
            "sonde._core",
            sources=sorted(glob("src/sonde/_core/**/*.c", recursive=True)),
            depends=glob("src/sonde/_core/**/*.h", recursive=True),
            include_dirs=["src/sonde/_core"],
            libraries=["m"],
            extra_compile_args=[
                "-std=gnu11",
                "-O2",
                "-fvisibility=hidden",
                "-fexceptions",  # what torch throws passes through _core/torch/observer.c
                *os.environ.get("SONDE_CFLAGS", "").split(),
            ],
            extra_link_args=os.environ.get("SONDE_LDFLAGS", "").split(),
        )
    ],
)
