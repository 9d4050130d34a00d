"""The command line: what it hands on, and how mistakes end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from vouchmq.server.cli import main as program
from vouchmq.server.cli.commands import handover
from vouchmq.server.errors import StartupError
from vouchmq.server.settings import alarm_limits
from vouchmq.server.settings.settings import Settings, flag_name, scalar_fields
from vouchmq.server.version import VERSION, build_kind


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a broker would have been started; none is."""
    runs: list[Settings] = []

    def run(settings: Settings) -> int:
        runs.append(settings)
        return 0

    replace_app(monkeypatch, run)
    replace_environment(monkeypatch, {})
    return runs


def replace_app(monkeypatch: pytest.MonkeyPatch, run: Callable[[Settings], int]) -> None:
    """Let `vouchmq.server.edge.app` be a module with nothing but this `run`."""
    module = ModuleType("vouchmq.server.edge.app")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "vouchmq.server.edge.app", module)


def replace_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Let these be all environment variables."""
    monkeypatch.setattr(os, "environ", environment)


def test_serve_without_flags_starts_with_the_defaults(started: list[Settings]) -> None:
    assert program.main(["serve"]) == 0
    assert started == [Settings()]


def test_flags_file_and_environment_reach_the_broker(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_environment(monkeypatch, {"VOUCHMQ_HEARTBEAT_S": "7"})
    file = tmp_path / "vouchmq.toml"
    file.write_text("channel_max = 8\n")
    arguments = ["--config", str(file), "--port", "0", "--data-dir", str(tmp_path)]
    assert program.main(["serve", *arguments]) == 0
    (settings,) = started
    assert (settings.port, settings.data_dir) == (0, tmp_path)
    assert (settings.channel_max, settings.heartbeat_s) == (8, 7)


def test_a_bad_setting_is_one_line_and_exit_2(
    started: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["serve", "--port", "70000"]) == 2
    assert started == []
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "vouchmq: --port: expected an integer from 0 to 65535, not '70000'\n"


def test_a_broker_that_cannot_start_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Settings) -> int:
        raise StartupError("cannot listen on 127.0.0.1:5672: address already in use")

    replace_app(monkeypatch, run)
    replace_environment(monkeypatch, {})
    assert program.main(["serve"]) == 2
    line = "vouchmq: cannot listen on 127.0.0.1:5672: address already in use\n"
    assert capsys.readouterr().err == line


def test_each_of_several_faults_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Settings) -> int:
        raise StartupError("one", "two")

    replace_app(monkeypatch, run)
    replace_environment(monkeypatch, {})
    assert program.main(["serve"]) == 2
    assert capsys.readouterr().err == "vouchmq: one\nvouchmq: two\n"


def test_the_exit_code_of_the_broker_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_app(monkeypatch, lambda _: 1)
    replace_environment(monkeypatch, {})
    assert program.main(["serve"]) == 1


def test_conformance_gets_every_argument_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        given.append(arguments)
        return 1

    module = ModuleType("vouchmq.conformance.__main__")
    module.__dict__["main"] = main
    monkeypatch.setitem(sys.modules, "vouchmq.conformance.__main__", module)
    assert program.main(["conformance", "--url", "amqp://h", "--help"]) == 1
    assert given == [["--url", "amqp://h", "--help"]]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--bogus"], "vouchmq conformance"),
        (["--jobs", "many"], "vouchmq conformance"),
        (["compare"], "vouchmq conformance compare"),
    ],
)
def test_a_mistake_in_the_arguments_of_conformance_is_one_line(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main(["conformance", *arguments])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{command}: ")
    assert captured.err.endswith(f"; see {command} --help\n")
    assert captured.err.count("\n") == 1


def test_conformance_that_is_not_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handover, "find_spec", lambda _: None)
    assert program.main(["conformance"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vouchmq: conformance needs jinja2, pika and aio_pika: ")
    assert said.count("\n") == 1


def test_no_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 2
    assert "serve" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["serv"], ["serve", "--prot", "1"], ["serve", "--conf=x"]])
def test_unknown_words_and_abbreviations_are_mistakes(
    arguments: list[str], started: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(arguments) == 2
    assert started == []
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vouchmq: ")
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_every_setting_has_a_flag_that_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    words = shown.split()
    for field in scalar_fields():
        assert flag_name(field.name) in words
    assert "--tls-verify verify_none|verify_peer" in " ".join(words)
    # Ids of the specification are for the reference.
    assert re.findall(r"\b[A-Z]+-\d\d\b", shown) == []


def test_help_imports_nothing_of_the_broker() -> None:
    code = (
        "import sys; from vouchmq.server.cli.main import main\n"
        "main(['serve', '--help'])\n"
        "names = {'uvloop', 'structlog', 'asyncio', 'pamqp', 'regex', 'rich'}\n"
        "print(sorted(names & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["status"], ["list", "queues"], ["get", "q"], ["ping"]])
def test_asking_a_broker_imports_nothing_that_is_slow(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from vouchmq.server.cli.main import main\n"
        f"code = main([*{words!r}, '--data-dir', {str(tmp_path)!r}])\n"
        "names = {'uvloop', 'structlog', 'asyncio', 'pamqp', 'regex', 'rich', 'ssl'}\n"
        "print(code, sorted(names & set(sys.modules)))"
    )
    environment = {**os.environ, "VOUCHMQ_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == f"{1 if words == ['ping'] else 2} []"


def test_the_version_is_told_by_the_module_itself() -> None:
    command = [sys.executable, "-m", "vouchmq", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"vouchmq {VERSION} ({build_kind()})\n"


def test_a_watermark_beyond_the_memory_there_is_is_refused() -> None:
    alarm_limits.require_memory(Settings(vm_memory_high_watermark="2GB"), 2_000_000_000)
    alarm_limits.require_memory(Settings(vm_memory_high_watermark="1.0"), 2_000_000_000)
    alarm_limits.require_memory(Settings(vm_memory_high_watermark="2TB"), 0)
    with pytest.raises(StartupError, match="2TB is more than the 2000000000 bytes of memory"):
        alarm_limits.require_memory(Settings(vm_memory_high_watermark="2TB"), 2_000_000_000)


def test_a_disk_limit_beyond_the_file_system_is_refused() -> None:
    alarm_limits.require_disk(Settings(disk_free_limit="2GB"), 0, 2_000_000_000)
    alarm_limits.require_disk(Settings(disk_free_limit="1.5"), 1_000_000_000, 1_500_000_000)
    alarm_limits.require_disk(Settings(disk_free_limit="2TB"), 0, 0)
    for text in ("99999999999999999999TB", "2.1"):
        with pytest.raises(StartupError, match=f"{text} is more than the 2000000000 bytes of the"):
            alarm_limits.require_disk(Settings(disk_free_limit=text), 1_000_000_000, 2_000_000_000)


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_an_empty_directory_name_is_not_the_current_directory(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["store", verb, ""]) == 2
    assert capsys.readouterr() == (
        "",
        f"vouchmq: invalid value for '[DIR]': expected a path, not ''; see vouchmq store {verb} "
        "--help\n",
    )


@pytest.mark.parametrize("command", [["definitions", "export", "--data-dir"], ["store", "check"]])
def test_a_directory_that_cannot_be_read_is_named_once(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert program.main([*command, str(missing)]) == 2
    why = f"vouchmq: cannot read data directory {missing}: No such file or directory\n"
    assert capsys.readouterr() == ("", why)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lst"], "no such command 'lst' (did you mean list?); see vouchmq --help"),
        (["list"], "missing command; see vouchmq list --help"),
        (["list", "cats"], "no such command 'cats'; see vouchmq list --help"),
        (["serve", "--data-dir"], "option '--data-dir' requires an argument; see vouchmq --help"),
        (
            ["store", "check", "--jsn", "d"],
            "no such option '--jsn' (did you mean --json?); see vouchmq store check --help",
        ),
        # Two letters and the dashes are no likeness.
        (["serve", "--bogus"], "no such option '--bogus'; see vouchmq serve --help"),
        (
            ["get", "q", "--count", "abc"],
            "invalid value for '--count': 'abc' is not a valid integer; see vouchmq get --help",
        ),
        (
            ["bench", "--rate", "x"],
            "invalid value for '--rate': 'x' is not a valid number; see vouchmq bench --help",
        ),
        (
            ["ha", "create", "--ha-stream", "a.b"],
            "--ha-stream: expected up to 100 letters, digits, _ and -, not 'a.b'",
        ),
        (
            ["ledger", "on", "off"],
            "got unexpected extra argument (off); see vouchmq ledger on --help",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_where_to_read_on(arguments: list[str], line: str) -> None:
    done = CliRunner().invoke(program.program, arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"vouchmq: {line}\n")


# Their output is a document of its own kind, or there is none.
WITHOUT_JSON = frozenset(
    {
        *("serve", "manage", "completion", "definitions export"),
        *("rabbitmqctl", "conformance", "audit", "archive", "replay"),
    }
)


def test_every_command_that_prints_something_has_json() -> None:
    lacking = {
        path
        for path, command in commands_of("", program.program)
        if not any("--json" in each.opts for each in command.params)
    }
    assert lacking == WITHOUT_JSON


def commands_of(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, by their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands_of(words, command)
        else:
            yield words, command


def test_the_commands_are_listed_without_importing_them() -> None:
    code = (
        "import sys; from vouchmq.server.cli.main import main; main(['--help'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('vouchmq.server.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(
        [
            f"vouchmq.server.{each}"
            for each in ("cli", "cli.main", "cli.program", "errors", "version")
        ]
    )


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands of a group, those below it as well."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


def test_every_command_can_be_imported_and_explains_itself() -> None:
    for path, command in commands(program.program):
        if not isinstance(command, handover.Handover):
            assert command.get_short_help_str(200), path
            done = CliRunner().invoke(program.program, [*path, "--help"])
            assert done.exit_code == 0, (path, done.stderr)
            assert done.stdout.startswith(f"Usage: vouchmq {' '.join(path)} ")


@pytest.mark.parametrize("is_installed", [True, False])
def test_what_is_missing_is_named_as_pip_knows_it(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that is not installed is no package that an index has."""

    class Installed:
        name = "vouchmq"

    def found(_: str) -> type[Installed]:
        if not is_installed:
            raise metadata.PackageNotFoundError
        return Installed

    monkeypatch.setattr(metadata, "distribution", found)
    monkeypatch.setattr(handover, "find_spec", lambda _: None)
    done = CliRunner().invoke(program.program, ["audit"])
    package = "vouchmq" if is_installed else "."
    assert (done.exit_code, done.stderr) == (
        2,
        f"vouchmq: audit needs pyspark and pyarrow: pip install '{package}[spark]'\n",
    )


def test_a_list_is_given_in_one_flag_or_in_several(started: list[Settings]) -> None:
    assert program.main(["serve", "--host", "::1,127.0.0.2"]) == 0
    assert program.main(["serve", "--host", "::1", "--host", "127.0.0.2", "--port=1"]) == 0
    assert [settings.host for settings in started] == [("::1", "127.0.0.2")] * 2
    assert started[1].port == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    done = CliRunner().invoke(program.program, ["completion", shell])
    assert done.exit_code == 0
    assert f"_VOUCHMQ_COMPLETE={shell}_complete" in done.stdout
    assert CliRunner().invoke(program.program, ["completion", "dash"]).exit_code == 2


def completed(words: str) -> list[str]:
    """What bash is told for the last of some words, and that no command was imported for it."""
    environment = {
        **os.environ,
        "_VOUCHMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "vouchmq"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_words_are_completed() -> None:
    assert completed("vouchmq de") == ["declare", "delete", "definitions"]
    assert {"user", "queue", "vhost-limit"} <= set(completed("vouchmq delete "))
    assert "--columns" in completed("vouchmq list queues --c")
    assert completed("vouchmq top --show c") == ["connections"]


def test_a_broker_does_not_carry_what_it_never_uses() -> None:
    unused = ("rich", "greenlet", "urllib.request", "vouchmq.server.edge.replicated")
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "from vouchmq.server.cli.program import import_structlog\n"
        "import_structlog()\n"
        "import_module('vouchmq.server.edge.app')\n"
        f"print([name for name in sys.modules if name.startswith({unused})])\n"
        "import_module('vouchmq.management.process')\n"
        "print([name for name in sys.modules if name.startswith('rich')])\n"
        "import_module('rich.console')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n[]\n"
