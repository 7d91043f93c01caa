"""The C extension, and the hook that makes `SONDE=1` work. All else is in pyproject.toml."""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
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


MOST_COMPILERS = 8  # a container may have more processors than memory for compilers


class BuildTogether(build_ext):
    """Compiles as many files at a time as there are processors; setuptools takes one by one."""

    def build_extension(self, ext):
        compile_files = self.compiler.compile

        def compile_together(sources, **options):
            processors = len(os.sched_getaffinity(0))
            with ThreadPoolExecutor(min(processors, MOST_COMPILERS)) as pool:
                made = pool.map(lambda source: compile_files([source], **options), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_together
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_files


SOURCES = sorted(glob("src/sonde/_core/**/*.c", recursive=True))
HEADERS = glob("src/sonde/_core/**/*.h", recursive=True)
# A library of its own, which the hook loads in short programs: it has to be small.
DELAY = "src/sonde/_core/delay/delay.c"
# Newer compilers refuse a function that the headers of this Python do not declare; older ones warn.
REFUSED = ["-Werror=implicit-function-declaration", "-Werror=int-conversion"]
FLAGS = [
    "-std=gnu11",
    "-O2",
    "-fvisibility=hidden",
    *REFUSED,
    *os.environ.get("SONDE_CFLAGS", "").split(),
]
LINK = os.environ.get("SONDE_LDFLAGS", "").split()

setup(
    cmdclass={"build_ext": BuildTogether, "build_py": BuildWithHook},
    ext_modules=[
        Extension(
            "sonde._core",
            sources=[source for source in SOURCES if source != DELAY],
            depends=HEADERS,
            include_dirs=["src/sonde/_core"],
            libraries=["m"],
            # What torch throws passes through _core/torch/observer.c.
            extra_compile_args=[*FLAGS, "-fexceptions"],
            extra_link_args=LINK,
        ),
        Extension(
            "sonde._delay",
            sources=[DELAY],
            depends=HEADERS,
            include_dirs=["src/sonde/_core"],
            extra_compile_args=FLAGS,
            extra_link_args=LINK,
        ),
    ],
)
