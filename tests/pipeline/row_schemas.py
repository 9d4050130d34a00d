"""Rows as Spark has them, spelt out."""

from __future__ import annotations


class Spelt:
    """Looks like a field of a Spark schema."""

    def __init__(self, name: str, kind: str, *, nullable: bool = True) -> None:
        self.name = name
        self.nullable = nullable
        self.dataType = self
        self._kind = kind

    def simpleString(self) -> str:  # noqa: N802
        return self._kind


class Schema:
    def __init__(self, *fields: Spelt) -> None:
        self.fields = fields
