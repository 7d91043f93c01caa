"""What kind of work a library call is, in words: told by its package, never by source text."""

from __future__ import annotations

# By module, package or the beginning of a call's name; the longest that fits counts.
_KINDS = {
    "serialising and parsing": (
        "json", "orjson", "ujson", "simplejson", "pickle", "cloudpickle", "marshal", "csv", "yaml",
        "tomllib", "xml", "lxml", "bs4", "html", "msgpack", "google.protobuf", "pyarrow",
    ),
    "regular expressions": ("re", "regex"),
    "a database": (
        "sqlite3", "sqlalchemy", "psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "pymongo",
        "redis", "django.QuerySet", "django.Manager", "django.Model", "django.RelatedManager",
        "django.ForwardManyToOneDescriptor", "peewee", "duckdb",
    ),
    "the network": (
        "socket", "ssl", "http", "urllib", "urllib3", "requests", "httpx", "httpcore", "aiohttp",
        "ftplib", "smtplib", "boto3", "botocore", "grpc", "websockets", "paramiko",
    ),
    "starting processes": ("subprocess", "multiprocessing.Process.start", "multiprocessing.Popen"),
    "waiting for other threads or processes": (
        "threading", "queue", "concurrent", "multiprocessing",
    ),
    "the event loop": ("asyncio", "uvloop", "anyio", "trio"),
    "copying": ("copy", "shutil", "copyreg"),
    "compressing": ("gzip", "zlib", "bz2", "lzma", "zipfile", "tarfile", "zstandard"),
    "numeric work": ("numpy", "scipy", "torch", "jax", "tensorflow", "sklearn", "cupy", "numba",
                     "+ (numpy", "+= (numpy", "- (numpy", "-= (numpy", "* (numpy", "*= (numpy",
                     "/ (numpy", "/= (numpy", "@ (numpy"),
    "data frames": ("pandas", "polars", "dask"),
    "images and sound": ("PIL", "cv2", "imageio", "librosa", "torchvision", "torchaudio"),
    "logging": ("logging", "loguru", "structlog"),
    "compiling": ("torch._dynamo", "torch._inductor", "ast", "compileall", "jinja2", "compile",
                  "eval", "exec"),
    "files": ("pathlib", "tempfile", "glob", "os", "io", "fsspec", "h5py", "torch.load",
              "torch.save", "numpy.load", "numpy.save"),
    "dates and numbers as text": ("datetime", "dateutil", "decimal", "_strptime", "locale"),
    "sleeping": ("time.sleep",),
    "sorting": ("sorted", "list.sort", "heapq", "bisect"),
    "searching in a list": ("in (list)", "in (tuple)", "list.index", "list.count", "list.remove"),
    "moving the elements of a list": ("list.insert", "list.pop", "del [] (list)"),
    "copying a long text or list": (
        "+ (str)", "+= (str)", "+ (bytes)", "+= (bytes)", "+ (list)", "+ (tuple)", "+= (tuple)",
        "[] (str)", "[] (bytes)", "[] (list)", "[] (tuple)",
    ),
    "single elements of arrays": ("[] (numpy", "[] = (numpy"),
    "exceptions": ("raise",),
    "asking again and again": ("while",),
    "copying into a merged dictionary or list": ("{**}", "[*]"),
    "adding up": ("sum",),
    "looking for the smallest or largest": ("min", "max"),
    "hashing": ("hashlib", "_hashlib", "hmac", "zlib.crc32", "md5", "sha1", "sha2", "sha3"),
    "text": ("str",),
    "random numbers": ("random", "secrets"),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


def find_kind(call: str) -> str:
    """Return what kind of work a call like `json.loads` or `import numpy` is; empty if unknown."""
    if call.startswith("import "):
        return "importing"
    parts = call.split(".")
    for end in range(len(parts), 0, -1):
        kind = _KIND_OF.get(".".join(parts[:end]))
        if kind is not None:
            return kind
    return ""
