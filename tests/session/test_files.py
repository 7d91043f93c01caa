"""How files of a session are written and read: whole, checked and under a lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sonde.errors import Damaged, NotYours
from sonde.session import files


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with files.Replacement(str(path)) as hidden:
        Path(hidden).write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a"]


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ValueError), files.Replacement(str(path)) as hidden:
        Path(hidden).write_text("half")
        raise ValueError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_link_in_the_place_of_the_hidden_file_is_not_written_through(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "a"
    other.write_text("theirs")
    Path(files.Replacement(str(path)).hidden).symlink_to(other)
    files.write_whole(str(path), "ours", sync=True)
    assert (other.read_text(), path.read_text()) == ("theirs", "ours")
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_folder", (False, True))
def test_a_lock_is_waited_for_and_then_given_up(tmp_path: Path, is_folder: bool) -> None:
    path = str(tmp_path) if is_folder else str(tmp_path / "lock")
    with files.Locked(path, 0.0):
        with pytest.raises(TimeoutError, match="another process has locked it"), \
             files.Locked(path, 0.01):  # fmt: skip
            pass
        fd = files.open_lock(path)
        assert not files.take_lock(fd)
    assert files.take_lock(fd)
    os.close(fd)
    with files.Locked(path, 0.0):
        pass


def test_a_lock_is_free_again_though_a_child_has_the_file_open(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    locked = files.Locked(path, 0.0)
    with locked:
        child = os.dup(locked._fd)  # as a fork would
    try:
        with files.Locked(path, 0.0):
            pass
    finally:
        os.close(child)


def test_a_lock_of_a_killed_holder_is_free(tmp_path: Path, run) -> None:
    path = str(tmp_path / "lock")
    run(f"""
import os
from sonde.session import files
assert files.take_lock(files.open_lock({path!r}))
os._exit(0)
""")
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_a_checked_file_reads_back_and_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_checked(str(path), {"a": 1, "b": ["ü", None, 1.5]})
    assert files.read_checked(str(path)) == {"a": 1, "b": ["ü", None, 1.5]}
    path.write_text(path.read_text().replace('"a": 1', '"a": 3'))
    with pytest.raises(Damaged, match=r"a\.json is damaged"):
        files.read_checked(str(path))


@pytest.mark.parametrize("text", ("", "[1]", "{", "[" * 100_000))
def test_what_is_no_json_object_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Damaged, match=r"a\.json is not"):
        files.read_checked(str(tmp_path / "a.json"))


def test_a_pipe_in_the_place_of_a_file_is_damage_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(Damaged):
        files.read_json(str(tmp_path / "a.json"))


def test_the_log_stops_growing(tmp_path: Path) -> None:
    for _ in range(5):
        files.log(str(tmp_path), "x" * 100_000)
    assert (tmp_path / files.LOG).stat().st_size < files.LOG_BYTES + 100_100
    files.log(str(tmp_path / "gone"), "lost, without a word")


# ---- whose folder it is ----------------------------------------------------------------------


def give_away(folder: Path) -> None:
    """Make a folder another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 54321, 54321)


def test_a_folder_of_ones_own_is_written_to_through_its_descriptor(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with files.OwnFolder(str(tmp_path), "inner", make=True) as folder:
        tmp_path.rename(moved := tmp_path.with_name("moved"))
        tmp_path.symlink_to("/")  # as the owner of a folder further up could do
        files.write_whole(os.path.join(folder, "a"), "ours")
    assert (moved / "inner" / "a").read_text() == "ours"
    tmp_path.unlink()
    moved.rename(tmp_path)


def test_a_folder_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    give_away(tmp_path)
    with pytest.raises(NotYours, match=r"belongs to user #54321, .* `sudo -u #54321 sonde …`"), \
         files.OwnFolder(str(tmp_path)):  # fmt: skip
        pass


def test_a_folder_that_others_can_write_to_is_not_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(NotYours, match="other users can write to"), \
         files.OwnFolder(str(tmp_path)):  # fmt: skip
        pass


@pytest.mark.parametrize("name", ("link", "..", "a/b", ""))
def test_an_inner_folder_never_leads_out(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to("/")
    with pytest.raises((NotADirectoryError, Damaged)), files.OwnFolder(str(tmp_path), name):
        pass


def test_a_log_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("theirs")
    (tmp_path / files.LOG).symlink_to("other")
    files.log(str(tmp_path), "ours")
    assert (tmp_path / "other").read_text() == "theirs"


def test_json_that_is_too_deep_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": ' + "[" * 700 + "]" * 700 + ', "check": 1}')
    with pytest.raises(Damaged):
        files.read_checked(str(path))
