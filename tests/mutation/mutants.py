"""Mutants: small wrong changes to the product, drawn by a seed from everything that can be changed.

A mutant replaces one expression or one statement of one file, and nothing else of its text, so
that a traceback still shows the line one knows. The operators are those that mutation testing
agrees on: comparisons and their limits, conditions, arithmetic, constants, and statements left
out. Docstrings, log lines, error texts, annotations and type aliases are not touched: what is
wrong there is no wrong behaviour, or not one that a test of behaviour should see.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: Final[dict[type[ast.operator], ast.operator]] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(),
    ast.BitOr: ast.BitAnd(),
    ast.BitAnd: ast.BitOr(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
}
QUIET_CALLS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
"""Calls that only tell: what they say is not behaviour."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: `old` at a place becomes `new`. Lines from 1, columns in bytes from 0."""

    path: str
    line: int
    end_line: int
    column: int
    end_column: int
    operator: str
    old: str
    new: str

    def __str__(self) -> str:
        """Tell it in one line."""
        old, new = (" ".join(text.split())[:70] for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.operator}: {old}  =>  {new}"

    def applied(self, source: str) -> str:
        """Return the file's text with the change made."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        rest = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (before + self.new.encode() + rest).decode()


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """List everything that can be changed in a file."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(root).as_posix()
    return [
        Mutant(
            name,
            node.lineno,
            node.end_lineno or node.lineno,
            node.col_offset,
            node.end_col_offset or 0,
            operator,
            ast.get_source_segment(source, node) or "",
            new,
        )
        for function in _functions(ast.parse(source))
        for node, operator, new in _changes(function)
    ]


def drawn(root: Path, folders: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """Draw so many of all mutants of the folders, each line at most once."""
    found = [
        mutant
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        for mutant in mutants_of(path, root)
    ]
    random.Random(seed).shuffle(found)
    chosen: dict[tuple[str, int], Mutant] = {}
    for mutant in found:
        chosen.setdefault((mutant.path, mutant.line), mutant)
        if len(chosen) == count:
            break
    return list(chosen.values())


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Bodies of functions only: what a module or class says about itself is run at import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _changes(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    for statement in function.body:
        for node in _own(statement):
            if isinstance(node, ast.expr):
                yield from _of_expression(node)
            elif isinstance(node, ast.stmt):
                yield from _of_statement(node)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a statement without what only tells, inner functions and annotations."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise):
        return
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _tells(node.value)):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _own(child)


def _tells(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in QUIET_CALLS
    )


def _of_expression(node: ast.expr) -> Iterator[tuple[ast.expr, str, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = COMPARISONS.get(type(node.ops[0]))
        if swapped is not None:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node, "comparison", f"({left} {swapped[1]} {right})"
    elif isinstance(node, ast.BoolOp):
        first = " and " if isinstance(node.op, ast.Or) else " or "
        yield node, "connective", "(" + first.join(f"({ast.unparse(v)})" for v in node.values) + ")"
        yield node, "operand", f"({ast.unparse(node.values[0])})"
        yield node, "operand", f"({ast.unparse(node.values[-1])})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "negation", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        made = ast.BinOp(node.left, ARITHMETIC[type(node.op)], node.right)
        yield node, "arithmetic", f"({ast.unparse(made)})"
    elif isinstance(node, ast.IfExp):
        yield node, "branch", f"({ast.unparse(node.body)})"
        yield node, "branch", f"({ast.unparse(node.orelse)})"
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 1 << 16:
        yield node, "constant", str(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, "constant", str(not node.value)


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.stmt, str, str]]:
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        # A local name that is never set is an error at once; what stays unset elsewhere is a bug.
        if isinstance(target, ast.Attribute | ast.Subscript) or isinstance(node, ast.AugAssign):
            yield node, "left out", "pass"
    elif isinstance(node, ast.Expr | ast.Delete | ast.Continue | ast.Break):
        yield node, "left out", "pass"
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Compare | ast.BoolOp):
        yield node, "negation", f"return not ({ast.unparse(node.value)})"
    elif isinstance(node, ast.If) and len(node.orelse) == 0:
        # The body of an `if` without else, never run: as if the case had been forgotten.
        yield node, "case left out", "pass"
