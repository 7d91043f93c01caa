"""The token and the certificate that agents and those who ask them share.

All agents of a cluster have the same three files: who has the key is an agent, who has the token
may ask. They are made once, and copied (or shared by a home folder) wherever they are needed."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
import tempfile

from sonde import environ
from sonde.errors import Error, NoSession

TOKEN, CERTIFICATE, KEY = "token", "agent.crt", "agent.key"
NAME = "sonde-agent"  # in the certificate; whoever asks expects it, whatever the host is called
_OPENSSL_S = 60.0
_LONGEST = 1 << 16
_LEAST_TOKEN = 32


def make_credentials() -> str:
    """Return the folder of the files; make them if there are none."""
    folder = environ.find_fleet_folder()
    if os.path.exists(os.path.join(folder, TOKEN)):
        return folder
    try:
        parent = os.path.dirname(os.path.abspath(folder))
        os.makedirs(parent, mode=0o700, exist_ok=True)
        hidden = tempfile.mkdtemp(prefix=".fleet-", dir=parent)  # mode 0700
    except OSError as error:
        raise Error(f"{folder} cannot be made: {error.strerror}; SONDE_FLEET names another place"
                    ) from None  # fmt: skip
    try:
        _write_files(hidden)
        os.rename(hidden, folder)  # the first of several agents wins; all use its files
    except OSError as error:
        if not os.path.exists(os.path.join(folder, TOKEN)):
            raise Error(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return folder


def _write_files(folder: str) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650", "-subj", f"/CN={NAME}",
             "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", KEY, "-out",
             CERTIFICATE]  # fmt: skip
    try:
        subprocess.run(words, cwd=folder, capture_output=True, check=True, timeout=_OPENSSL_S)
    except FileNotFoundError:
        raise Error(
            "the certificate of agents is made with openssl, which is not here; install it, or "
            f"copy {environ.find_fleet_folder()} from where it is"
        ) from None
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise Error(f"openssl made no certificate: {said.splitlines()[-1:] or error}") from None
    fd = os.open(os.path.join(folder, TOKEN), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    for name in (KEY, CERTIFICATE):
        os.chmod(os.path.join(folder, name), 0o600)


def read_token() -> bytes:
    """Return the token."""
    token = _read(TOKEN).strip()
    if len(token) < _LEAST_TOKEN:
        raise Error(f"{_name(TOKEN)} is too short for a token; remove its folder for a new one")
    return token


def read_certificate() -> bytes:
    """Return the certificate that agents show."""
    return _read(CERTIFICATE)


def read_key() -> bytes:
    """Return the key of the certificate; only agents need it."""
    return _read(KEY)


def _name(name: str) -> str:
    return os.path.join(environ.find_fleet_folder(), name)


def _read(name: str) -> bytes:
    """Return a file that nobody else can read; one of root's may be read by our group, as those
    are that Kubernetes mounts."""
    path = _name(name)
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            text = file.read(_LONGEST)
    except FileNotFoundError:
        raise NoSession(
            f"there is no {path}; `sonde agent` makes it, and it must be the same on every host"
        ) from None
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    others = stat.S_IRWXO if about.st_uid == 0 else stat.S_IRWXO | stat.S_IRWXG
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & others:
        raise Error(f"{path} can be read by others; `chmod 600` it, or make a new one")
    return text
