"""The house is tested too: who imports whom, sizes, names, docstrings, ids of rules.

What is checked is what `git` would ship: the folders below, as far as they exist. A rule is a
function that lists what is wrong with one source; its test names every offender of all sources.
Each file is read and parsed once. `PLANTED` has a breach of each rule, which it must find.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from vouchmq.server.settings.settings import scalar_fields

PROJECT: Final = Path(__file__).resolve().parents[1]
OURS: Final = (
    *("protocol", "store", "server", "vouchmq", "conformance", "bench", "tests", "tools"),
    "examples",
)
# Folders of the top level that are imported, and installed, as parts of the package `vouchmq`.
LINKED: Final = ("conformance", "protocol", "server", "store")
# Rooms whose code is the product: these have sizes and docstrings to keep.
PRODUCT: Final = ("protocol", "store", "server", "vouchmq", "tools")
MODULE_LINES: Final = 700
FUNCTION_LINES: Final = 60
FORBIDDEN_NAMES: Final = frozenset(
    {"utils", "util", "helpers", "common", "base", "manager", "misc"}
)
# An attribute with a callback that does nothing until somebody sets another.
LATE_BOUND: Final = re.compile(r"\s+self\.\w+(: [^=]+)? = lambda\b")
# Words that this project once had for things which have a name in the field.
METAPHORS: Final = frozenset(
    {
        *("aside", "bury", "buried", "care", "chore", "clerk", "companion", "companions", "desk"),
        *("desks", "door", "doors", "equip", "equipment", "fate", "fates", "feed", "feeds", "gate"),
        *("gates", "govern", "government", "habits", "home", "homes", "lane", "lanes", "lease"),
        *(
            "letter",
            "letters",
            "office",
            "outlet",
            "pen",
            "pens",
            "pile",
            "relog",
            "ring",
            "ruling",
        ),
        *("scrub", "shelf", "shelves", "sketch", "spoil", "spoiled", "stocktaking", "stories"),
        *(
            "storing",
            "story",
            "stuck",
            "tally",
            "tunnel",
            "upkeep",
            "vacate",
            "vacated",
            "watchman",
        ),
    }
)
# What the field itself calls so.
TERMS: Final = re.compile(r"dead_letters?|(java|spark)_home|hash_ring")
WORDS_OF_A_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

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
        *("edge", "cli", "ledger.files", "backup"),
    }
)
ASYNC_ALLOWED: Final = frozenset(
    f"vouchmq.server.edge.{name}"
    for name in (
        *("app", "listener", "listening", "shutdown", "starting.definitions_file"),
        *(f"replicated.{each}" for each in ("copying", "engine", "membership", "vitals")),
    )
)


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
REPLICATION: Final = ("vouchmq.server.replication", "vouchmq.server.version", "vouchmq.store")
ROOMS: Final[dict[str, Room]] = {
    "vouchmq.protocol": Room(("vouchmq.protocol",), frozenset({"pamqp"})),
    # For BytesIO, which is memory and no file.
    "vouchmq.protocol.reader": Room(("vouchmq.protocol",), frozenset({"pamqp"}), frozenset({"io"})),
    "vouchmq.store": Room(("vouchmq.store",)),
    "vouchmq.store.checksum": Room((), frozenset({"isal"})),
    # For sys.byteorder and sys.maxsize, which are constants.
    "vouchmq.store.journal.records": Room(("vouchmq.store",), world=frozenset({"sys"})),
    "vouchmq.store.disk": Room(("vouchmq.store",), world=DISK),
    "vouchmq.store.sync.worker": Room(("vouchmq.store",), world=SYNC),
    "vouchmq.store.sync.helper": Room(("vouchmq.store",), world=SYNC),
    "vouchmq.store.sync.sched_slice": Room(("vouchmq.store",), world=frozenset({"ctypes"})),
    "vouchmq.server.broker": Room(
        ("vouchmq.server.broker", "vouchmq.protocol", "vouchmq.store"),
        frozenset({"pamqp", "regex", "structlog"}),
    ),
    "vouchmq.server": Room(("vouchmq.server", "vouchmq.protocol"), STATE_MACHINES),
    # It stands between the broker and the journal.
    "vouchmq.server.runtime": Room(
        ("vouchmq.server", "vouchmq.protocol", "vouchmq.store"), STATE_MACHINES
    ),
    "vouchmq.server.definitions": Room(
        ("vouchmq.server", "vouchmq.protocol"), STATE_MACHINES | {"msgspec"}
    ),
    # State machines and bytes, but for the modules below.
    "vouchmq.server.replication": Room(REPLICATION, frozenset({"msgspec", "structlog"})),
    "vouchmq.server.replication.credentials": Room(REPLICATION, frozenset({"cryptography"})),
    "vouchmq.server.replication.monitoring": Room(
        REPLICATION, frozenset({"msgspec"}), frozenset({"ssl"})
    ),
    **{
        f"vouchmq.server.replication.{edge}": Room(
            REPLICATION, frozenset({"structlog"}), frozenset({"asyncio", "random", "ssl"})
        )
        for edge in ("client", "connection", "log", "node", "standby")
    },
    # It reads its file, and has paths among its values.
    "vouchmq.server.settings": Room(
        ("vouchmq.server.settings", "vouchmq.server.errors", "vouchmq.server.ledger.text"),
        frozenset({"msgspec"}),
        frozenset({"pathlib"}),
    ),
    # It shows everything, the journal too.
    "vouchmq.server.admin": Room(
        ("vouchmq.server", "vouchmq.protocol", "vouchmq.store"), STATE_MACHINES | {"msgspec"}
    ),
    # What can be made to fail for tests: a disk says ENOSPC there.
    "vouchmq.server.faults": Room(
        ("vouchmq.server", "vouchmq.protocol", "vouchmq.store"),
        STATE_MACHINES | {"msgspec"},
        frozenset({"os"}),
    ),
    # A process of its own, which knows a broker by what goes over the control socket.
    "vouchmq.management": Room(
        (
            *(
                "vouchmq.management",
                "vouchmq.protocol.text",
                "vouchmq.server.admin.frames",
                "vouchmq.server.edge.control.client",
            ),
            *("vouchmq.server.edge.listening", "vouchmq.server.edge.logging"),
            "vouchmq.server.edge.starting.stop_signals",
            *("vouchmq.server.edge.tls", "vouchmq.server.errors", "vouchmq.server.version"),
        ),
        frozenset(
            {"msgspec", "prometheus_client", "regex", "starlette", "structlog", "uvicorn", "uvloop"}
        ),
        WORLD,
    ),
    "vouchmq.__main__": Room(("vouchmq.server.cli",), world=WORLD),
    "vouchmq.kit": Room(("vouchmq.kit",), frozenset({"aio_pika", "pika", "pytest"}), WORLD),
    # The bulk client takes pamqp for all that is cold.
    "vouchmq.kit.bulk": Room(("vouchmq.kit", "vouchmq.protocol"), frozenset({"pamqp"}), WORLD),
    # It starts the broker as a process, and asks it over its control socket.
    "vouchmq.testing": Room(
        ("vouchmq.testing", "vouchmq.server.edge.control.client"), frozenset({"pytest"}), WORLD
    ),
    "vouchmq.testing.launch": Room(("vouchmq.server.cli",), world=WORLD),
    "vouchmq.spark": Room(
        ("vouchmq.spark", "vouchmq.kit", "vouchmq.protocol"),
        frozenset(
            {"jinja2", "markupsafe", "matplotlib", "pamqp", "py4j", "pyarrow", "pyspark", "rich"}
        ),
        WORLD,
    ),
    "vouchmq.conformance": Room(
        ("vouchmq.conformance",),
        frozenset({"aio_pika", "jinja2", "markupsafe", "pamqp", "pika", "pytest", "rich"}),
        WORLD,
    ),
    # Programs to copy from: each runs by itself and knows nothing of this broker.
    "examples": Room((), frozenset({"aio_pika", "celery", "kombu", "pika", "yarl"}), WORLD),
    "examples.spark": Room(
        ("vouchmq.kit", "vouchmq.spark"), frozenset({"pyarrow", "pyspark"}), WORLD
    ),
    # Suites to copy from, for who tests with a broker.
    "examples.testing": Room(
        ("examples.testing", "vouchmq.testing"),
        frozenset({"aio_pika", "celery", "faststream", "pamqp", "pika", "pydantic", "pytest"}),
        WORLD,
    ),
    "bench": Room(
        ("bench",), frozenset({"aio_pika", "pamqp", "pika", "psutil", "rich", "uvloop"}), WORLD
    ),
    "bench.micro": Room(
        ("bench", "vouchmq.protocol", "vouchmq.store"),
        frozenset({"pamqp", "psutil", "rich"}),
        WORLD,
    ),
    # A standby needs the log's engine.
    "bench.micro.drain": Room(
        ("bench", "vouchmq.protocol", "vouchmq.server", "vouchmq.store"), frozenset(), WORLD
    ),
    "bench.micro.standby": Room(
        ("bench", "vouchmq.server.replication", "vouchmq.store"), frozenset({"uvloop"}), WORLD
    ),
    "bench.pipeline": Room(
        ("bench", "vouchmq.kit", "vouchmq.spark"),
        frozenset({"pamqp", "pika", "psutil", "pyarrow", "pyspark", "rich"}),
        WORLD,
    ),
    **{
        f"vouchmq.server.{edge}": Room(
            ("vouchmq.server", "vouchmq.protocol", "vouchmq.store"),
            frozenset({"aiofiles", "msgspec", "rich", "structlog", "uvloop"}),
            WORLD,
        )
        for edge in EDGES
    },
    "vouchmq.server.cli": Room(
        ("vouchmq.server", "vouchmq.protocol", "vouchmq.store"),
        frozenset({"click", "msgspec", "rich"}),
        WORLD,
    ),
}
# Every folder but the tests has rooms.
LAYERED: Final = tuple(folder for folder in OURS if folder != "tests")


@dataclass(frozen=True)
class Facts:
    """What the rules need to know of a tree, which is not kept."""

    imports: tuple[Import, ...]
    relative_imports: tuple[int, ...]
    async_lines: tuple[int, ...]
    functions: tuple[tuple[str, int], ...]
    # Of classes, functions and methods.
    names: tuple[str, ...]
    # Of parameters and of what is assigned to, attributes among them.
    bound: frozenset[str]
    unexplained: tuple[str, ...]
    # Public methods without a docstring: some `Protocol` may explain them.
    unexplained_methods: tuple[str, ...]
    explained_by_protocol: frozenset[str]
    # Of each class: the names of its bases, and its methods that have a docstring.
    bases: dict[str, tuple[str, ...]]
    explained_methods: dict[str, frozenset[str]]
    statements: frozenset[type[ast.stmt]]


@dataclass(frozen=True)
class Source:
    """One file: its path from the project's folder, and what stands in it."""

    path: Path
    text: str

    def __str__(self) -> str:
        return str(self.path)

    @property
    def module(self) -> str:
        """The name it is imported by."""
        parts = self.path.with_suffix("").parts
        if parts[0] in LINKED:
            parts = ("vouchmq", *parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def facts(self) -> Facts:
        """Found in one walk of its tree, by the first rule that asks."""
        return parse(self)


Rule = Callable[[Source], list[str]]


@cache
def is_module(name: str) -> bool:
    path = PROJECT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def parse(one: Source) -> Facts:
    tree = ast.parse(one.text, str(one))
    imports: list[Import] = []
    relative: list[int] = []
    functions: list[tuple[str, int]] = []
    classes: list[str] = []
    bound: set[str] = set()
    explained: set[str] = set()
    bases: dict[str, tuple[str, ...]] = {}
    explained_methods: dict[str, frozenset[str]] = {}
    # Of expressions only this one matters to a rule.
    awaits = ast.walk(tree) if "await" in one.text else ()
    waiting = [node.lineno for node in awaits if isinstance(node, ast.Await)]
    for node, typing_only in statements(tree, typing_only=False):
        bound |= names_bound_by(node)
        match node:
            case ast.Import():
                imports += [Import(one.module, each.name, typing_only) for each in node.names]
            case ast.ImportFrom():
                if node.level:
                    relative.append(node.lineno)
                imports += [Import(one.module, name, typing_only) for name in imported(node)]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
            case ast.ClassDef():
                classes.append(node.name)
                explained |= explained_by(node)
                # Of `Base[T]` only the name: the class may be generic.
                bases[node.name] = tuple(ast.unparse(each).split("[")[0] for each in node.bases)
                explained_methods[node.name] = documented_methods(node)
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
            waiting.append(node.lineno)
    bare = list(unexplained(tree, ""))
    if not ast.get_docstring(tree):
        bare.append("the module")
    return Facts(
        imports=tuple(imports),
        relative_imports=tuple(relative),
        async_lines=tuple(waiting),
        functions=tuple(functions),
        names=(*classes, *(name for name, _ in functions)),
        bound=frozenset(bound),
        unexplained=tuple(name for name in bare if "." not in name),
        unexplained_methods=tuple(name for name in bare if "." in name),
        explained_by_protocol=frozenset(explained),
        bases=bases,
        explained_methods=explained_methods,
        statements=frozenset(map(type, tree.body)),
    )


def names_bound_by(node: ast.stmt) -> set[str]:
    """The parameters of a function, or the names and attributes that a statement assigns to."""
    match node:
        case ast.FunctionDef(args=given) | ast.AsyncFunctionDef(args=given):
            return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        case ast.Assign():
            targets = node.targets
        case ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.AsyncFor():
            targets = [node.target]
        case ast.With() | ast.AsyncWith():
            targets = [each.optional_vars for each in node.items if each.optional_vars]
        case _:
            targets = []
    found: set[str] = set()
    while targets:
        match targets.pop():
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                targets += parts
            case ast.Starred(value=part):
                targets.append(part)
    return found


def statements(node: ast.AST, *, typing_only: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements below a node; with each, whether it is for the type checker alone."""
    below_if = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, part, ()):
            unrun = typing_only or (below_if and part == "body")
            if isinstance(child, ast.stmt):
                yield child, unrun
            yield from statements(child, typing_only=unrun)


def imported(node: ast.ImportFrom) -> list[str]:
    """`from server import topology` names a module, `from x import Thing` does not."""
    source = node.module or ""
    return [
        f"{source}.{alias.name}" if is_module(f"{source}.{alias.name}") else source
        for alias in node.names
    ]


def explained_by(node: ast.ClassDef) -> set[str]:
    """Methods that a `Protocol` explains; whoever implements one need not say it again."""
    if not any(ast.unparse(each).startswith("Protocol") for each in node.bases):
        return set()
    return {*documented_methods(node)}


def documented_methods(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        method.name
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(method)
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
        if not ast.get_docstring(child):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from unexplained(child, f"{prefix}{child.name}.")


@cache
def source(path: Path) -> Source:
    return Source(path.relative_to(PROJECT), path.read_text(encoding="utf-8"))


@cache
def files(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((PROJECT / folder).rglob("*.py")))


def sources(*folders: str) -> list[Source]:
    """The Python files of these folders, as far as they exist."""
    return [source(path) for folder in folders for path in files(folder)]


def offenders(rule: Rule, among: Iterable[Source]) -> list[str]:
    """Every breach of the rule, with the file it is in."""
    return [f"{each}: {breach}" for each in among for breach in rule(each)]


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
    if top == "mypy_extensions":
        return ""  # words for the compiler, which mean nothing otherwise
    return "" if top in room.foreign else "not a library of this room"


def imports_what_it_may_not(one: Source) -> list[str]:
    room = room_of(one.module)
    if room is None:
        return []
    return [
        *(f"line {line}: imports are absolute" for line in one.facts.relative_imports),
        *(f"{each.module}: {why}" for each in one.facts.imports if (why := complaint(each, room))),
    ]


def test_a_room_imports_only_what_it_may() -> None:
    assert offenders(imports_what_it_may_not, sources(*LAYERED)) == []


def test_the_rule_of_imports_bites() -> None:
    """A check that finds nothing might look nowhere: some planted breaches."""
    planted = {
        "vouchmq.protocol.reader": [
            "vouchmq.server.edge.app",
            "vouchmq.store.journal.journal",
            "asyncio",
            "time",
            "structlog",
        ],
        "vouchmq.store.journal.journal": [
            "vouchmq.protocol.errors",
            "vouchmq.server.runtime.context",
            "os",
            "structlog",
            "threading",
        ],
        "vouchmq.store.disk": ["vouchmq.protocol.errors", "asyncio", "threading"],
        "vouchmq.server.broker.queues.classic": [
            "vouchmq.server.channel.channel",
            "asyncio",
            "random",
            "uvloop",
        ],
        "vouchmq.server.connection.connection": [
            "vouchmq.store.journal.journal",
            "asyncio",
            "os",
            "time",
            "uvloop",
        ],
        "vouchmq.server.edge.app": ["vouchmq.conformance.wire", "bench.run", "pika"],
        "vouchmq.conformance.wire": [
            "vouchmq.protocol.codec",
            "vouchmq.server.edge.app",
            "vouchmq.store.disk",
            "vouchmq",
        ],
        "bench.run": ["vouchmq.server.edge.app", "vouchmq.protocol.codec"],
        "bench.micro.codec": ["vouchmq.server.edge.app"],
        "vouchmq.testing.broker": ["vouchmq.server.edge.app", "vouchmq.store.disk", "pika"],
        "vouchmq.kit": [
            "vouchmq.server.edge.app",
            "vouchmq.protocol.codec",
            "vouchmq.store.disk",
            "vouchmq.conformance.wire",
        ],
    }
    for module, breaches in planted.items():
        room = room_of(module)
        assert room is not None
        for breach in breaches:
            assert complaint(Import(module, breach, typing_only=False), room), (module, breach)


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {
        one.module: {
            taken.module
            for taken in one.facts.imports
            if not taken.typing_only and taken.module.split(".")[0] in OURS
        }
        for one in sources("protocol", "store", "server")
    }
    assert circle(graph) == []
    graph["vouchmq.protocol.errors"] = {"vouchmq.server.edge.app"}
    if is_module("vouchmq.server.edge.app") and is_module("vouchmq.protocol.errors"):
        assert circle(graph)


def test_types_are_known_in_no_circle() -> None:
    """A reader walks the imports that only a type checker follows, too."""
    graph = {
        one.module: {taken.module for taken in one.facts.imports} - {one.module}
        for one in sources(*LAYERED)
    }
    assert sorted(module for module in graph if module in reached(graph, module)) == []
    graph["vouchmq.protocol.errors"] = {"vouchmq.server.broker.vhost"}
    assert "vouchmq.protocol.errors" in reached(graph, "vouchmq.protocol.errors")


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that one needs, and what those need."""
    found: set[str] = set()
    ahead = set(graph.get(start, ()))
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead |= graph.get(module, set())
    return found


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


# Folders of `server/` of which each imports the other, types included. A pair may be removed, none
# may be added.
MUTUAL: Final = frozenset(
    {
        *(("channel", "connection"), ("channel", "ledger"), ("channel", "runtime")),
        *(("connection", "runtime"), ("ledger", "runtime")),
    }
)


def mutual(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Pairs of which each has an arrow to the other, by name."""
    return {
        (one, other)
        for one, others in graph.items()
        for other in others
        if one < other and one in graph.get(other, ())
    }


def test_folders_of_the_server_need_each_other_in_no_more_pairs() -> None:
    graph: dict[str, set[str]] = {}
    for one in sources("server"):
        if len(one.path.parts) > 2:
            graph.setdefault(one.path.parts[1], set()).update(
                each.module.split(".")[2]
                for each in one.facts.imports
                if each.module.startswith("vouchmq.server.")
            )
    assert mutual(graph) == MUTUAL
    assert mutual({"edge": {"cli"}, "cli": {"edge", "auth"}, "auth": set()}) == {("cli", "edge")}


def waits_for_its_callback(one: Source) -> list[str]:
    lines = enumerate(one.text.splitlines(), 1)
    return [f"line {number}" for number, line in lines if LATE_BOUND.match(line)]


def test_nobody_waits_for_callbacks_that_are_set_afterwards() -> None:
    """What an object needs it gets when it is made; see `server/runtime/runtime.py`."""
    assert offenders(waits_for_its_callback, sources("protocol", "store", "server")) == []


def waits_below_the_edge(one: Source) -> list[str]:
    if one.module in ASYNC_ALLOWED:
        return []
    return [f"line {line}" for line in one.facts.async_lines]


def test_async_stops_at_the_edge() -> None:
    assert offenders(waits_below_the_edge, sources("protocol", "store", "server")) == []


def takes_from_a_test(one: Source) -> list[str]:
    return [
        each.module
        for each in one.facts.imports
        if each.module.startswith("tests.") and each.module.rsplit(".", 1)[-1].startswith("test_")
    ]


def test_what_tests_share_is_in_no_test_module() -> None:
    assert offenders(takes_from_a_test, sources("tests")) == []


def is_too_long(one: Source) -> list[str]:
    lines = len(one.text.splitlines())
    return [f"{lines} lines"] if lines > MODULE_LINES else []


def test_a_module_fits_in_a_head() -> None:
    assert offenders(is_too_long, sources(*PRODUCT)) == []


# Modules in a folder of the product, `__init__.py` aside; these have more, and may only get fewer.
FOLDER_MODULES: Final = 15
LARGE_FOLDERS: Final[dict[str, int]] = {"server/channel": 16}


def test_a_folder_has_about_fifteen_modules() -> None:
    counts = Counter(
        str(one.path.parent) for one in sources(*PRODUCT) if one.path.name != "__init__.py"
    )
    assert counts["store/journal"] > 5
    assert {each: n for each, n in counts.items() if n > FOLDER_MODULES} == LARGE_FOLDERS


def introduces_nothing(one: Source) -> list[str]:
    """A folder says in its `__init__.py` what it may import and where one starts to read."""
    # The package itself is only the place where the folders of the top level come together.
    if one.path.name != "__init__.py" or str(one.path.parent) in ("vouchmq", "tools"):
        return []
    text = " ".join((ast.get_docstring(ast.parse(one.text)) or "").split())
    return [words for words in ("May import", "Start with") if words not in text]


def test_a_folder_says_where_to_start() -> None:
    assert offenders(introduces_nothing, sources(*PRODUCT)) == []


def has_long_functions(one: Source) -> list[str]:
    return [
        f"{name}: {lines} lines" for name, lines in one.facts.functions if lines > FUNCTION_LINES
    ]


def test_a_function_fits_on_a_screen() -> None:
    assert offenders(has_long_functions, sources(*PRODUCT)) == []


def is_named_after_nothing(one: Source) -> list[str]:
    return sorted(FORBIDDEN_NAMES & {one.path.stem, *one.path.parts[:-1]})


def test_names_say_what_is_inside() -> None:
    assert offenders(is_named_after_nothing, sources(*OURS)) == []


def speaks_in_metaphors(one: Source) -> list[str]:
    names = [*one.path.with_suffix("").parts, *one.facts.names, *sorted(one.facts.bound)]
    return [name for name in names if METAPHORS & set(words_of(name))]


def words_of(name: str) -> list[str]:
    """The words that a name is made of; `dead_letters` is one."""
    parts = "_".join(WORDS_OF_A_NAME.findall(name)).lower()
    return TERMS.sub("term", parts).split("_")


def test_names_are_those_of_the_field() -> None:
    assert offenders(speaks_in_metaphors, sources(*OURS)) == []
    assert words_of("_PendingDeadLetters") == ["pending", "term"]
    assert speaks_in_metaphors(Source(Path("store/tally.py"), "")) == ["tally"]


MODULE_NAMED: Final = re.compile(r"`(?:[\w/]+/)?(\w+\.py)`")
CLASS_NAMED: Final = re.compile(r"\b[Ss]ee `([A-Z]\w+)")


@cache
def known() -> frozenset[str]:
    """Files and classes that prose may name."""
    among = sources(*OURS)
    return frozenset(name for one in among for name in (one.path.name, *one.facts.names))


def names_what_is_gone(one: Source) -> list[str]:
    named = [*MODULE_NAMED.findall(one.text), *CLASS_NAMED.findall(one.text)]
    return [name for name in named if name not in known()]


def test_prose_names_modules_and_classes_that_exist() -> None:
    assert offenders(names_what_is_gone, sources(*PRODUCT)) == []


# Whoever opens one of these reads first what it is, what holds, what was tried and what it costs.
LOAD_BEARING: Final = (
    *("store/journal/journal.py", "store/journal/records.py", "store/recovery/recover.py"),
    *("store/compaction/compactor.py", "store/sync/group_commit.py"),
    *("server/runtime/turn.py", "server/runtime/runtime.py", "server/broker/enqueue.py"),
    *("server/broker/queues/classic.py", "server/channel/publish.py"),
    *("server/channel/unacked.py", "server/connection/connection.py"),
)
ESSAY_LINES: Final = 10


def lacks_an_essay(one: Source) -> list[str]:
    essay = ast.get_docstring(ast.parse(one.text)) or ""
    lines = len(essay.splitlines())
    return [f"{lines} lines"] if lines < ESSAY_LINES or "costs:" not in essay else []


def test_load_bearing_modules_open_with_an_essay() -> None:
    assert offenders(lacks_an_essay, [source(PROJECT / path) for path in LOAD_BEARING]) == []


def does_something_in_its_package(one: Source) -> list[str]:
    if one.path.name != "__init__.py" or not one.text:
        return []
    # It says what lives in the folder. What users import may also gather its public names, and do
    # nothing else.
    is_imported_by_users = str(one.path.parent) in GATHERED
    allowed = {*GATHERING} if is_imported_by_users else {ast.Expr}
    return sorted(kind.__name__ for kind in one.facts.statements - allowed)


def test_packages_are_folders_and_nothing_else() -> None:
    assert offenders(does_something_in_its_package, sources(*OURS)) == []


GATHERED: Final = ("vouchmq/kit", "vouchmq/kit/bulk", "vouchmq/spark", "vouchmq/testing")
# Some names are gathered only when they are asked for: `if TYPE_CHECKING: … else: …`.
GATHERING: Final = (ast.Expr, ast.ImportFrom, ast.Assign, ast.If)


@cache
def seams() -> frozenset[str]:
    """Methods that some `Protocol` of the product explains."""
    return frozenset().union(*(one.facts.explained_by_protocol for one in sources(*PRODUCT)))


@cache
def inherited() -> tuple[dict[str, tuple[str, ...]], dict[str, frozenset[str]]]:
    """The bases of all classes of the product, and the methods that each class explains."""
    facts = [one.facts for one in sources(*PRODUCT)]
    bases = {name: each for one in facts for name, each in one.bases.items()}
    explained = {name: each for one in facts for name, each in one.explained_methods.items()}
    return bases, explained


def is_explained_by_a_base(name: str, method: str) -> bool:
    """Whether a base of this class explains the method: `help()` shows what it says there."""
    bases, explained = inherited()
    return any(
        method in explained.get(base, ()) or is_explained_by_a_base(base, method)
        for base in bases.get(name, ())
    )


def leaves_unexplained(one: Source) -> list[str]:
    if one.path.name == "__init__.py":
        return []
    methods = [name.split(".")[-2:] for name in one.facts.unexplained_methods]
    return [
        *one.facts.unexplained,
        *(
            f"{name}.{method}"
            for name, method in methods
            if method not in seams() and not is_explained_by_a_base(name, method)
        ),
    ]


def test_what_is_public_is_explained() -> None:
    assert offenders(leaves_unexplained, sources(*PRODUCT)) == []
    assert is_explained_by_a_base("Expiry", "before_dispatch")
    assert not is_explained_by_a_base("Expiry", "nonsense")
    assert not is_explained_by_a_base("Feature", "before_dispatch")


RULE: Final = re.compile(r"\b([A-Z]{2,10})-(\d\d)\b")


@cache
def rules() -> frozenset[str]:
    """The ids that the specification defines: first in a row of a table, or in bold."""
    text = (PROJECT / "docs" / "reference" / "behaviour.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"(?:^\| |\*\*)([A-Z]{2,10}-\d\d)\b", text, re.MULTILINE))


@cache
def families() -> frozenset[str]:
    return frozenset(rule.split("-")[0] for rule in rules())


def cites_no_rule(one: Source) -> list[str]:
    cited = {match[0] for match in RULE.finditer(one.text) if match[1] in families()}
    return sorted(cited - rules())


def test_cited_rules_exist() -> None:
    assert offenders(cites_no_rule, sources(*OURS)) == []


def test_the_specification_is_read() -> None:
    assert {"CONN-01", "CONF-08", "PERM-02", "GEN-03", "TX-08", "QOS-03"} <= rules()
    assert f"CONN-{99}" not in rules()


def unread(names: Iterable[str], among: Iterable[Source]) -> list[str]:
    """The settings that none of these sources reads."""
    read = {
        name
        for one in among
        if one.path.name != "settings.py"
        for name in re.findall(r"settings\.(\w+)", one.text)
    }
    # The methods of Settings that give users and virtual hosts read the rest.
    inside = {"default_user", "default_pass", "default_vhost"}
    return sorted({*names} - read - inside)


def test_no_setting_is_accepted_and_ignored() -> None:
    names = [field.name for field in scalar_fields()]
    assert unread(names, sources("server")) == []
    assert "port" in names
    assert unread([*names, "ignored"], sources("server")) == ["ignored"]
    assert "port" in unread(names, [])


LATER: Final = re.compile(r"\b(" + "|".join(("TODO", "FIXME", "XXX", "HACK")) + r")\b")


def leaves_for_later(one: Source) -> list[str]:
    numbered = enumerate(one.text.splitlines(), 1)
    return [f"line {number}" for number, line in numbered if LATER.search(line)]


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert offenders(leaves_for_later, sources(*PRODUCT, "conformance", "bench")) == []


# A source that breaks the rule, and the same put right.
PLANTED: Final[dict[Rule, tuple[str, str, str]]] = {
    imports_what_it_may_not: ("store/a.py", "def f():\n    import os", "import zlib"),
    waits_for_its_callback: (
        "server/a.py",
        "class A:\n def f(self):\n  self.done: Callable[[int], None] = lambda _: None",
        "class A:\n def f(self, done):\n  self.done = done",
    ),
    waits_below_the_edge: ("store/a.py", "async def f(): pass", "def f(): pass"),
    takes_from_a_test: (
        "tests/unit/store/test_a.py",
        "from tests.unit.store.test_b import disk",
        "from tests.unit.store.disks import disk",
    ),
    is_too_long: ("store/a.py", "1\n" * (MODULE_LINES + 1), "1\n" * MODULE_LINES),
    introduces_nothing: (
        "store/__init__.py",
        "'''Segments. Start with `a.py`.'''",
        "'''Segments. May import all. Start with `a.py`.'''",
    ),
    has_long_functions: (
        "store/a.py",
        "class A:\n def f():\n" + "  1\n" * FUNCTION_LINES,
        "class A:\n def f():\n" + "  1\n" * (FUNCTION_LINES - 1),
    ),
    does_something_in_its_package: (
        "vouchmq/kit/__init__.py",
        "for a in []: pass",
        "from a import b\na = b",
    ),
    leaves_unexplained: (
        "store/a.py",
        "'''A'''\nclass A:\n '''A'''\n def f(): pass",
        "'''A'''\nclass A:\n '''A'''\n def f(): '''A'''\n def _g(): pass",
    ),
    speaks_in_metaphors: (
        "store/a.py",
        "class A:\n def f():\n  def put_aside(): pass",
        "class DeadLetters: pass",
    ),
    lacks_an_essay: (
        "store/a.py",
        "'''A\n" + "1\n" * ESSAY_LINES + "'''",
        "'''A\n" + "1\n" * ESSAY_LINES + "What it costs: much.'''",
    ),
    names_what_is_gone: (
        "store/a.py",
        "# see `Care`, `server/care.py` and `line.py`",
        "# see `Queue`, `server/channel/publish.py` and `disk.py`",
    ),
    cites_no_rule: ("store/a.py", f"# CONN-{99}", "# CONN-01"),
    leaves_for_later: ("store/a.py", "# TO" + "DO", "# done"),
}


def test_every_rule_of_a_source_bites() -> None:
    for rule, (path, wrong, right) in PLANTED.items():
        assert rule(Source(Path(path), wrong)), rule
        assert rule(Source(Path(path), right)) == [], rule
    assert imports_what_it_may_not(Source(Path("store/a.py"), "from . import b"))
    assert is_named_after_nothing(Source(Path("store/" + "utils.py"), ""))
    for path in ("store/__init__.py", "vouchmq/__init__.py", "vouchmq/spark/a/__init__.py"):
        assert does_something_in_its_package(Source(Path(path), "from a import b"))
    assert leaves_unexplained(Source(Path("store/a.py"), "1")) == ["the module"]
    assert leaves_unexplained(Source(Path("store/a.py"), "'''A'''\ndef f(): 1")) == ["f"]
    assert imports_what_it_may_not(
        Source(Path("protocol/a.py"), "from vouchmq.server.edge import app")
    )
    [one] = Source(Path("store/a.py"), "if TYPE_CHECKING:\n from b import C").facts.imports
    assert one.typing_only
    assert {*map(str, sources("store"))} >= {"store/journal/journal.py", "store/disk.py"}
