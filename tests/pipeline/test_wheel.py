"""The wheel, installed beside a project that has packages named as our folders are.

It is built from a copy of the tracked files, once from the tree and once from the source
distribution, and installed into an environment of its own. Skipped where the build backend can
neither be found nor fetched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.integration.broker_process import PROJECT, READY_LINE, clean_environment
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LINKED: Final = ("conformance", "protocol", "server", "store")
INSTALL: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-q")
LIMIT_S: Final = 300
BACKEND: Final = "setuptools>=77"

# What a project may have beside it; each says whose it is.
OWN: Final = ("server", "protocol", "store", "conformance", "broker", "kit")
OWN_TEXT: Final = 'OWNER = "the project"\n'
CHECK_OWN: Final = "".join(
    f"import {name}\nassert {name}.OWNER == 'the project', {name}.__file__\n" for name in OWN
)
KIT_PROGRAM: Final = """
import asyncio, sys
from vouchmq.kit import Message, connect

async def main(url: str) -> None:
    async with await connect(url) as kit:
        await kit.declare("wheel.kit")
        await kit.publish("two teas", "wheel.kit")
        receiver = await kit.receiver("auto")
        done = asyncio.Event()

        async def take(message: Message) -> None:
            print("took", message.body.decode())
            done.set()

        await receiver.listen("wheel.kit", take)
        await asyncio.wait_for(done.wait(), 60)

asyncio.run(main(sys.argv[1]))
"""
SUITE: Final = """
from vouchmq.kit.bulk import BulkConnection

def test_fixtures(vouchmq_broker, vouchmq_vhost):
    with BulkConnection.open(vouchmq_vhost.url) as connection, connection.channel() as channel:
        channel.declare("wheel.suite", durable=True)
    vouchmq_broker.restart()
    vouchmq_vhost.queue("wheel.suite").wait(messages=0)
"""
SPARK_PROGRAM: Final = """
import sys, tempfile
import vouchmq.spark
from vouchmq.kit.bulk import BulkConnection
from vouchmq.spark.session import session

url = sys.argv[1]
with BulkConnection.open(url) as connection, connection.channel() as channel:
    channel.declare("wheel.spark", durable=True)
with session("wheel", cores=1, memory="512m") as spark:
    vouchmq.spark.register(spark)
    rows = spark.range(200).selectExpr(
        "CAST(id AS STRING) AS body",
        "'wheel.spark' AS routing_key",
        "map('n', CAST(id AS STRING)) AS headers",
    )
    rows.write.format("amqp").option("url", url).mode("append").save()
    work = tempfile.mkdtemp()
    query = (
        spark.readStream.format("amqp").option("url", url).option("queue", "wheel.spark").load()
        .selectExpr("CAST(body AS STRING) AS body", "headers")
        .writeStream.format("parquet").option("checkpointLocation", work + "/checkpoint")
        .trigger(availableNow=True).start(work + "/rows")
    )
    query.awaitTermination()
    read = {row.body for row in spark.read.parquet(work + "/rows").collect()}
    assert read == {str(number) for number in range(200)}, sorted(read)
    print("read", len(read))
"""


def _run(
    command: Sequence[str | Path], directory: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=clean_environment({"PYTHONPATH": ".", "PYTHONWARNINGS": "ignore", **more}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _must_run(command: Sequence[str | Path], directory: Path, **more: str) -> str:
    done = _run(command, directory, **more)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout has, without what builds and runs have left in this one."""
    copy = tmp_path_factory.mktemp("checkout") / "vouchmq"
    copy.mkdir()
    for name in (*LINKED, "vouchmq", "tests"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, copy / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md", "MANIFEST.in"):
        shutil.copy(PROJECT / name, copy)
    return copy


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the build backend; skips where there is none."""
    place = tmp_path_factory.mktemp("builder")
    _must_run([sys.executable, "-m", "venv", place], place)
    python = place / "bin" / "python"
    done = _run([python, *INSTALL, "install", BACKEND], place)
    if done.returncode != 0:
        pytest.skip(f"{BACKEND} cannot be installed here: {done.stderr[-300:]}")
    return python


def _wheel(builder: Path, source: Path, out: Path) -> Path:
    options = ("--no-deps", "--no-build-isolation", "-w", out)
    _must_run([builder, *INSTALL, "wheel", *options, source], out.parent)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(builder: Path, checkout: Path) -> Path:
    return _wheel(builder, checkout, checkout.parent / "from-tree")


@pytest.fixture(scope="module")
def sdist(builder: Path, checkout: Path) -> Path:
    program = "import setuptools.build_meta as backend; backend.build_sdist('../sdist')"
    (checkout.parent / "sdist").mkdir()
    _must_run([builder, "-c", program], checkout)
    (archive,) = (checkout.parent / "sdist").glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel; dependencies are those of the tests."""
    return _environment(tmp_path_factory.mktemp("environment"), wheel)


def _environment(place: Path, *what: str | Path) -> Path:
    _must_run([sys.executable, "-m", "venv", place], place)
    python = place / "bin" / "python"
    # `pip install vouchmq[kit,spark,conformance]`, without fetching a gigabyte in each run.
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _must_run([python, *INSTALL, "install", "--no-deps", "--no-index", *what], place)
    return python


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    for name in OWN:
        (directory / name).mkdir()
        (directory / name / "__init__.py").write_text(OWN_TEXT)
    return directory


@pytest.fixture(scope="module")
def url(python: Path, project: Path) -> Iterator[str]:
    """A broker that the installed command runs, in the project's directory."""
    output = project / "broker.log"
    serve = ("serve", "--port", "0", "--data-dir", "broker-data")
    command = [str(python.with_name("vouchmq")), *serve]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=project,
            env=clean_environment({"PYTHONPATH": "."}),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:

        def ready() -> re.Match[str] | None:
            assert process.poll() is None, output.read_text()
            return READY_LINE.search(output.read_text())

        wait_until(ready, output.read_text)
        found = READY_LINE.search(output.read_text())
        assert found is not None
        yield f"amqp://guest:guest@127.0.0.1:{found['port']}/%2F"
        process.terminate()
        assert process.wait(60) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


class TestContents:
    def test_nothing_but_vouchmq_is_installed(self, wheel: Path) -> None:
        names = zipfile.ZipFile(wheel).namelist()
        assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"vouchmq"}

    def test_every_file_is_there_once(self, wheel: Path) -> None:
        names = Counter(zipfile.ZipFile(wheel).namelist())
        assert [name for name, count in names.items() if count > 1] == []
        wanted = {f"vouchmq/{path}" for path in _product(PROJECT / "vouchmq")}
        assert {name for name in names if ".dist-info/" not in name} == wanted
        # What is not a module is easily forgotten.
        assert "vouchmq/py.typed" in wanted
        assert "vouchmq/conformance/prepared/definitions.json" in wanted

    def test_the_source_distribution_gives_the_same_wheel(
        self, builder: Path, wheel: Path, sdist: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        again = _wheel(builder, sdist, tmp_path / "out")
        assert _digests(again) == _digests(wheel)

    def test_the_source_distribution_has_the_product_alone(self, sdist: Path) -> None:
        with tarfile.open(sdist) as archive:
            names = {member.name.split("/", 1)[1] for member in archive if not member.isdir()}
        beside = {name for name in names if not name.startswith(("vouchmq/", "vouchmq.egg-info/"))}
        files = {"MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
        assert beside == files


def _product(package: Path) -> Iterator[str]:
    """The files of the package, links followed, as paths below it."""
    for directory, folders, files in os.walk(package, followlinks=True):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        for name in files:
            if not name.endswith(".pyc"):
                yield str((Path(directory) / name).relative_to(package))


def _digests(wheel: Path) -> dict[str, int]:
    infos = zipfile.ZipFile(wheel).infolist()
    return {info.filename: info.CRC for info in infos if "dist-info" not in info.filename}


class TestInstalled:
    def test_the_project_keeps_its_own_packages(self, python: Path, project: Path) -> None:
        program = "import vouchmq.server.cli.main, vouchmq.store, vouchmq.kit, vouchmq.spark\n"
        _must_run([python, "-c", program + CHECK_OWN], project)
        _must_run([python, "-c", CHECK_OWN + program], project)
        where = _must_run([python, "-c", "import vouchmq.server as s; print(s.__file__)"], project)
        assert Path(where.strip()).is_relative_to(python.parents[1])

    def test_the_broker_answers(self, python: Path, project: Path, url: str) -> None:
        port = url.rpartition(":")[2].partition("/")[0]
        for command in ([python.with_name("vouchmq")], [python, "-m", "vouchmq"]):
            _must_run([*command, "ping", "--port", port], project)

    def test_the_kit(self, python: Path, project: Path, url: str) -> None:
        said = _must_run([python, "-c", CHECK_OWN + KIT_PROGRAM, url], project)
        assert said == "took two teas\n"

    def test_the_fixtures_of_pytest(self, python: Path, project: Path) -> None:
        (project / "test_wheel_suite.py").write_text(CHECK_OWN + SUITE)
        suite = ("-m", "pytest", "-p", "no:cacheprovider", "test_wheel_suite.py")
        assert "1 passed" in _must_run([python, *suite], project)

    def test_the_conformance_suite(
        self, python: Path, project: Path, url: str, tmp_path: Path
    ) -> None:
        report = tmp_path / "report.json"
        command: list[str | Path] = [
            python,
            "-m",
            "vouchmq.conformance",
            "--url",
            url,
            "--only",
            "QUEUE-0",
        ]
        _must_run([*command, "--json", report], project)
        page = tmp_path / "page.html"
        compare: list[str | Path] = [python, "-m", "vouchmq.conformance", "compare", report, report]
        _must_run([*compare, "--html", page], project)
        assert "<style>" in page.read_text()
        assert json.loads(report.read_text())

    def test_a_spark_job_writes_and_reads(self, python: Path, project: Path, url: str) -> None:
        if shutil.which("java") is None:
            pytest.skip("there is no Java")
        (project / "job.py").write_text(CHECK_OWN + SPARK_PROGRAM)
        said = _must_run([python, "job.py", url], project, PYSPARK_PYTHON=str(python))
        assert said.splitlines()[-1] == "read 200"


class TestEditable:
    def test_an_editable_install_leads_to_the_checkout(
        self, builder: Path, checkout: Path, project: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        program = "import setuptools.build_meta as backend; backend.build_editable('OUT')"
        _must_run([builder, "-c", program.replace("OUT", str(tmp_path / "out"))], checkout)
        (link,) = (tmp_path / "out").glob("*.whl")
        (tmp_path / "environment").mkdir()
        python = _environment(tmp_path / "environment", link)
        program = "import vouchmq.store, vouchmq.kit, vouchmq.conformance.page as page\n"
        where = _must_run([python, "-c", program + CHECK_OWN + "print(page.__file__)"], project)
        assert Path(where.strip()).resolve() == checkout / "conformance" / "page.py"
        _must_run([python.with_name("vouchmq"), "--version"], project)
