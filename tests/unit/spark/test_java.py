"""Which Java is taken: stand-ins on a PATH of their own, and the wrapper around one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vouchmq.spark import java


def stand_in(directory: Path, version: str) -> Path:
    """A `java` in DIRECTORY/bin that says that version and else prints its arguments."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" != -version ] || {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25)],
)
def test_versions_are_read(tmp_path: Path, version: str, major: int) -> None:
    assert java.version_of(stand_in(tmp_path, version)) == major


def test_what_is_no_java_has_version_0(tmp_path: Path) -> None:
    assert java.version_of(tmp_path / "nothing") == 0
    assert java.version_of("/bin/false") == 0


def test_java_home_comes_first(tmp_path: Path) -> None:
    stand_in(tmp_path / "home", "21.0.1")
    on_path = stand_in(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert java.find_java(environment) == tmp_path / "home"


def test_path_does_without_java_home(tmp_path: Path) -> None:
    on_path = stand_in(tmp_path, "17.0.1")
    assert java.find_java({"PATH": str(on_path.parent)}) is None


def test_a_java_home_that_is_too_old_does_not_win(tmp_path: Path) -> None:
    stand_in(tmp_path / "old", "11.0.2")
    on_path = stand_in(tmp_path / "new", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path.parent)}
    assert java.find_java(environment) == tmp_path / "new"


def test_without_any_java_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "11.0.2")
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(java.JavaError, match="openjdk-17-jre-headless"):
        java.find_java({"PATH": str(tmp_path / "bin")})


def test_the_wrapper_leaves_out_one_word_and_keeps_the_others(tmp_path: Path) -> None:
    java_home = java.wrapped(stand_in(tmp_path, "25.0.2"))
    words = ["-cp", "a b*", "--add-modules=jdk.incubator.vector", "", "Main"]
    ran = subprocess.run(
        [java_home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["-cp", "a b*", "", "Main"]
