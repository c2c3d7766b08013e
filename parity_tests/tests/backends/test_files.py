"""Files: what is read and written is a regular file, and nothing else is renamed over."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backends import ArchiveError, load_arrays, save_arrays
from backends.files import FileError, replaceable_file, write_file
from parity_tests.tests.attack.odd import ODD


@pytest.mark.parametrize(("make", "words"), ODD.values(), ids=ODD)
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path, make: Callable[[Path], None], words: str):
    path = tmp_path / "odd"
    make(path)
    before = os.lstat(path)
    with pytest.raises(ArchiveError, match=words):
        load_arrays(path)
    for use in (replaceable_file, partial(write_file, content="text"), partial(save_arrays, arrays={"a": np.ones(2)})):
        with pytest.raises(FileError, match=words):
            use(path)
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "dangling"])
def test_a_link_is_followed_and_stays(tmp_path: Path, there: bool):
    link, file = tmp_path / "link", tmp_path / "folder" / "file"
    file.parent.mkdir()
    link.symlink_to(file)
    if there:
        file.write_text("before")
        file.chmod(0o640)
    assert replaceable_file(link) == file and file.exists() == there
    write_file(link, "after")
    assert link.is_symlink() and file.read_text() == "after"
    assert not there or file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere/file", "there is no folder"),
        ("file/below", "there is no folder|Not a directory"),
        ("x" * 300, "File name too long"),
        ("/proc/file", "cannot be written"),  # even root cannot
        ("a\0b", "not a valid path for a file"),
    ],
)
def test_that_a_file_cannot_be_written_is_found_out_before(tmp_path: Path, place: str, words: str):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(FileError, match=words):
        replaceable_file(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path):
    abandoned, *kept = [
        tmp_path / name
        for name in (
            f"[a].{'0' * 32}.partial",
            f"a.{'0' * 32}.partial",
            "[a].old.partial",
            f"[a].{'1' * 32}.partial",
            f"[a].{'2' * 32}.partial",
        )
    ]
    *files, folder, link = abandoned, *kept
    for file in files:
        file.write_text("")
    folder.mkdir()
    link.symlink_to(files[1])
    replaceable_file(tmp_path / "[a]")
    assert {*tmp_path.iterdir()} == {*kept}


def test_what_another_process_writes_is_not_taken_for_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace = Path.replace

    def while_checked(partial: Path, target: Path) -> Path:
        replaceable_file(target)
        return replace(partial, target)

    monkeypatch.setattr(Path, "replace", while_checked)
    write_file(tmp_path / "file", "content")
    assert (tmp_path / "file").read_text() == "content"


def test_files_are_written_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*arguments: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    unknown = tmp_path / f"file.{'0' * 32}.partial"
    unknown.write_text("")
    write_file(replaceable_file(tmp_path / "file"), "content")
    assert {*tmp_path.iterdir()} == {tmp_path / "file", unknown}
