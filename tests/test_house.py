"""The house is tested too: who imports whom, sizes, names, docstrings, ids of rules.

What is checked is what `git` would ship: the folders below, as far as they exist.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from server.settings import scalar_fields

PROJECT: Final = Path(__file__).resolve().parents[1]
OURS: Final = (
    *("protocol", "store", "server", "vouchmq", "conformance", "bench", "tests", "tools"),
    "examples",
)
# Rooms whose code is the product: these have sizes and docstrings to keep.
PRODUCT: Final = ("protocol", "store", "server", "vouchmq", "tools")
MODULE_LINES: Final = 700
FUNCTION_LINES: Final = 60
FORBIDDEN_NAMES: Final = frozenset(
    {"utils", "util", "helpers", "common", "base", "manager", "misc"}
)

# The world outside: a clock, a disk, a network, chance. Below the edge they are arguments.
WORLD: Final = frozenset(
    {
        *("asyncio", "ctypes", "fcntl", "io", "logging", "mmap", "multiprocessing", "os"),
        *("pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal"),
        *("socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "uuid", "uvloop"),
    }
)
# The edges of `server/`: they may touch the world, and hold no decision of AMQP.
EDGES: Final = frozenset(
    {
        *("transport", "app", "assembly", "settings", "accounts", "gauges", "logs", "ping"),
        *("store_report", "definitions_command", "options", "tls", "tls_door", "__main__"),
        *("control", "ledger.files", "ledger_command", "listening", "disk_watch"),
    }
)
ASYNC_ALLOWED: Final = frozenset({"server.transport", "server.app"})


@dataclass(frozen=True)
class Room:
    """Who lives there, and what they may import beside the standard library."""

    ours: tuple[str, ...]
    foreign: frozenset[str] = frozenset()
    world: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Import:
    """One imported module; `typing_only` when no statement of it is ever run."""

    importer: str
    module: str
    typing_only: bool


STATE_MACHINES: Final = frozenset({"pamqp", "regex", "structlog"})
# What the only files that touch the operating system need of it.
DISK: Final = frozenset({"fcntl", "os", "pathlib"})
SYNC: Final = frozenset(
    {
        *("ctypes", "fcntl", "mmap", "os", "pathlib", "queue", "select", "signal", "socket", "sys"),
        "threading",
    }
)
ROOMS: Final[dict[str, Room]] = {
    "protocol": Room(("protocol",), frozenset({"pamqp"})),
    # For BytesIO, which is memory and no file.
    "protocol.reader": Room(("protocol",), frozenset({"pamqp"}), frozenset({"io"})),
    "store": Room(("store",)),
    # For sys.byteorder and sys.maxsize, which are constants.
    "store.records": Room(("store",), world=frozenset({"sys"})),
    "store.disk": Room(("store",), world=DISK),
    "store.sync_worker": Room(("store",), world=SYNC),
    "store.sync_helper": Room(("store",), world=SYNC),
    "store.slices": Room(("store",), world=frozenset({"ctypes"})),
    "server.broker": Room(
        ("server.broker", "protocol", "store"), frozenset({"pamqp", "regex", "structlog"})
    ),
    "server": Room(("server", "protocol"), STATE_MACHINES),
    "vouchmq": Room(("vouchmq",), frozenset({"aio_pika", "pika", "pytest"}), WORLD),
    # The bulk client takes pamqp for all that is cold.
    **{
        f"vouchmq.kit.{room}": Room(("vouchmq.kit",), frozenset({"pamqp"}), WORLD)
        for room in sorted(path.stem for path in (PROJECT / "vouchmq" / "kit").glob("bulk*.py"))
    },
    "vouchmq.spark": Room(
        ("vouchmq",),
        frozenset({"matplotlib", "pamqp", "py4j", "pyarrow", "pyspark", "rich"}),
        WORLD,
    ),
    "conformance": Room(
        ("conformance",),
        frozenset({"aio_pika", "pamqp", "pika", "pytest", "rich"}),
        WORLD,
    ),
    # Programs to copy from: each runs by itself and knows nothing of this broker.
    "examples": Room((), frozenset({"aio_pika", "pika"}), WORLD),
    "examples.spark": Room(("vouchmq",), frozenset({"pyarrow", "pyspark"}), WORLD),
    "bench": Room(
        ("bench",), frozenset({"aio_pika", "pamqp", "pika", "psutil", "rich", "uvloop"}), WORLD
    ),
    "bench.micro": Room(
        ("bench", "protocol", "store"), frozenset({"pamqp", "psutil", "rich"}), WORLD
    ),
    "bench.pipeline": Room(
        ("bench", "vouchmq"),
        frozenset({"pamqp", "pika", "psutil", "pyarrow", "pyspark", "rich"}),
        WORLD,
    ),
    **{
        f"server.{edge}": Room(
            ("server", "protocol", "store"), frozenset({"aiofiles", "structlog", "uvloop"}), WORLD
        )
        for edge in EDGES
    },
    "server.admin": Room(
        ("server", "protocol", "store"), frozenset({"aiofiles", "structlog"}), WORLD
    ),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(*folders: str) -> list[Path]:
    """The Python files of these folders, as far as they exist."""
    return sorted(path for folder in folders for path in (PROJECT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    importer = module_name(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            source = node.module or ""
            # `from server import topology` names a module, `from x import Thing` does not.
            names = [
                f"{source}.{alias.name}" if is_module(f"{source}.{alias.name}") else source
                for alias in node.names
            ]
        for name in names:
            yield Import(importer, name, id(node) in typing_only)


@cache
def is_module(name: str) -> bool:
    path = PROJECT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def room_of(module: str) -> Room | None:
    """The narrowest room that the module lives in."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        room = ROOMS.get(".".join(parts[:size]))
        if room is not None:
            return room
    return None


def complaint(taken: Import, room: Room) -> str:
    """What is wrong with an import; empty when nothing is."""
    top = taken.module.split(".")[0]
    if top in OURS:
        # A package's own top-level name is no room: `from server import topology` was resolved.
        return "" if is_within(taken.module, room.ours) else "not its neighbour"
    if top in sys.stdlib_module_names:
        return "the world is an argument here" if top in WORLD - room.world else ""
    return "" if top in room.foreign else "not a library of this room"


def ids(paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(PROJECT)) for path in paths]


LAYERED: Final = [path for path in sources(*OURS) if room_of(module_name(path)) is not None]
PRODUCT_FILES: Final = sources(*PRODUCT)


@pytest.mark.parametrize("path", LAYERED, ids=ids(LAYERED))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = room_of(module_name(path))
    assert room is not None
    wrong = [f"{taken.module}: {why}" for taken in imports(path) if (why := complaint(taken, room))]
    assert not wrong


def test_the_rule_of_imports_bites() -> None:
    """A check that finds nothing might look nowhere: some planted breaches."""
    planted = {
        "protocol.reader": ["server.app", "store.journal", "asyncio", "time", "structlog"],
        "store.journal": ["protocol.errors", "server.node", "os", "structlog", "threading"],
        "store.disk": ["protocol.errors", "asyncio", "threading"],
        "server.broker.queue": ["server.channel", "asyncio", "random", "uvloop"],
        "server.connection": ["store.journal", "asyncio", "os", "time", "uvloop"],
        "server.app": ["conformance.wire", "bench.run", "pika"],
        "conformance.wire": ["protocol.codec", "server.app", "store.disk", "vouchmq"],
        "bench.run": ["server.app", "protocol.codec"],
        "bench.micro.codec": ["server.app"],
        "vouchmq.kit": ["server.app", "protocol.codec", "store.disk", "conformance"],
    }
    for module, breaches in planted.items():
        room = room_of(module)
        assert room is not None
        for breach in breaches:
            assert complaint(Import(module, breach, typing_only=False), room), (module, breach)


def test_modules_import_each_other_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources("protocol", "store", "server"):
        graph[module_name(path)] = {
            taken.module
            for taken in imports(path)
            if not taken.typing_only and taken.module.split(".")[0] in OURS
        }
    assert circle(graph) == []
    graph["protocol.errors"] = {"server.app"}
    if is_module("server.app") and is_module("protocol.errors"):
        assert circle(graph)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of the graph, if there is any."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for neighbour in sorted(graph.get(module, ())):
            found = walk(neighbour, [*way, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := walk(module, []))), [])


SYNCHRONOUS: Final = [
    path
    for path in sources("protocol", "store", "server")
    if module_name(path) not in ASYNC_ALLOWED and not is_within(module_name(path), ["server.admin"])
]


@pytest.mark.parametrize("path", SYNCHRONOUS, ids=ids(SYNCHRONOUS))
def test_async_stops_at_the_door(path: Path) -> None:
    kinds = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, kinds)]
    assert not lines


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=ids(PRODUCT_FILES))
def test_a_module_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=ids(PRODUCT_FILES))
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = [
        f"{node.name}: {size}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert not long


def test_names_say_what_is_inside() -> None:
    found = [
        path
        for path in sources(*OURS)
        if FORBIDDEN_NAMES & {path.stem, *path.relative_to(PROJECT).parts[:-1]}
    ]
    assert not found


def test_packages_are_folders_and_nothing_else() -> None:
    filled = [path for path in sources(*OURS) if path.name == "__init__.py" and path.read_text()]
    # What users import may gather its public names in one place, and do nothing else there.
    doing = [path for path in filled if set(map(type, tree(path).body)) - {*GATHERING}]
    assert not doing
    assert {path.parent.parent for path in filled} <= {PROJECT / "vouchmq"}


# Some names are gathered only when they are asked for: `if TYPE_CHECKING: … else: …`.
GATHERING: Final = (ast.Expr, ast.ImportFrom, ast.Assign, ast.If)


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=ids(PRODUCT_FILES))
def test_what_is_public_is_explained(path: Path) -> None:
    if path.name == "__init__.py":
        return
    module = tree(path)
    assert ast.get_docstring(module), "no docstring of the module"
    assert not list(unexplained(module, ""))


@cache
def seams() -> frozenset[str]:
    """Methods that a `Protocol` explains; whoever implements one need not say it again."""
    return frozenset(
        method.name
        for path in PRODUCT_FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(each).startswith("Protocol") for each in node.bases)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    )


def unexplained(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    """Public classes and functions without a docstring; what stands in functions is private."""
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_"):
            continue
        # A setter is explained by its getter.
        if any(ast.unparse(each).endswith(".setter") for each in child.decorator_list):
            continue
        if not ast.get_docstring(child) and not (prefix and child.name in seams()):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from unexplained(child, f"{prefix}{child.name}.")


RULE: Final = re.compile(r"\b([A-Z]{2,10})-(\d\d)\b")


@cache
def rules() -> frozenset[str]:
    """The ids that the specification defines: first in a row of a table, or in bold."""
    text = (PROJECT / "docs" / "behaviour.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"(?:^\| |\*\*)([A-Z]{2,10}-\d\d)\b", text, re.MULTILINE))


CITING: Final = sources(*OURS)


@pytest.mark.parametrize("path", CITING, ids=ids(CITING))
def test_cited_rules_exist(path: Path) -> None:
    families = {rule.split("-")[0] for rule in rules()}
    cited = {
        match[0]
        for match in RULE.finditer(path.read_text(encoding="utf-8"))
        if match[1] in families
    }
    assert not cited - rules()


def test_the_specification_is_read() -> None:
    assert {"CONN-01", "CONF-08", "PERM-02", "GEN-03", "TX-08", "QOS-03"} <= rules()
    assert f"CONN-{99}" not in rules()


@pytest.mark.parametrize("name", [field.name for field in scalar_fields()])
def test_no_setting_is_accepted_and_ignored(name: str) -> None:
    readers = [path for path in sources("server") if path.name != "settings.py"]
    read = re.compile(rf"settings\.{name}\b")
    # The methods of Settings that give users and virtual hosts read the rest.
    inside = {"default_user", "default_pass", "default_vhost"}
    assert name in inside or any(read.search(path.read_text(encoding="utf-8")) for path in readers)


def test_nothing_is_left_for_later_in_the_code() -> None:
    words = re.compile(r"\b(" + "|".join(("TODO", "FIXME", "XXX", "HACK")) + r")\b")
    found = [
        f"{path.relative_to(PROJECT)}:{number}"
        for path in sources(*PRODUCT, "conformance", "bench")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert not found
