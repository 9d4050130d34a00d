"""The columns of format `amqp`: their names and types as Spark writes them, and what may be asked.

One text is the source of the schema that users see, of the Arrow types of `rows.py` and of what the
sink takes. Imports neither Spark nor Arrow: of a Spark schema only its plain form is looked at.
"""

from __future__ import annotations

from typing import Any, Final

COLUMNS: Final[dict[str, str]] = {
    "queue": "string",
    "body": "binary",
    "exchange": "string",
    "routing_key": "string",
    "redelivered": "boolean",
    "delivery_count": "int",
    "offset": "bigint",
    "queue_id": "bigint",
    "content_type": "string",
    "content_encoding": "string",
    "headers": "map<string,string>",
    "delivery_mode": "int",
    "priority": "int",
    "correlation_id": "string",
    "reply_to": "string",
    "expiration": "string",
    "message_id": "string",
    "timestamp": "timestamp",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "properties_raw": "binary",
}
ALL: Final = tuple(COLUMNS)
SCHEMA_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
# Read by who asks for it only: it costs, and says of most messages what `headers` says.
TYPED: Final = "headers_typed"
_TYPED_KIND: Final = "map<string,struct<type:string,value:string>>"
TYPED_DDL: Final = f"{SCHEMA_DDL}, `{TYPED}` {_TYPED_KIND}"
KINDS: Final = {**COLUMNS, TYPED: _TYPED_KIND}

# What a delivery says of itself and a publish cannot.
_DELIVERY_ONLY: Final = ("queue", "redelivered", "delivery_count", "offset", "queue_id")
PUBLISHABLE: Final = tuple(name for name in KINDS if name not in _DELIVERY_ONLY)
# Spark's names of types that a publish takes where they differ from those a delivery gives.
_ALSO_PUBLISHED: Final = {
    "body": ("string",),
    "delivery_mode": ("tinyint", "smallint", "bigint"),
    "priority": ("tinyint", "smallint", "bigint"),
}


class SchemaError(ValueError):
    """A schema has a column that format `amqp` does not know or cannot take; the text names it."""


def projection(schema: Any) -> tuple[str, ...]:
    """The columns that a schema asks for, in its order.

    Args:
        schema: a Spark StructType

    Raises:
        SchemaError: a column is unknown or has another type
    """
    names: list[str] = []
    for field in schema.fields:
        kind = KINDS.get(field.name)
        if kind is None:
            raise SchemaError(f"column {field.name}: unknown; there are {', '.join(KINDS)}")
        if field.dataType.simpleString() != kind:
            raise SchemaError(
                f"column {field.name}: is {kind}, and not {field.dataType.simpleString()}"
            )
        if not field.nullable or not getattr(field.dataType, "valueContainsNull", True):
            raise SchemaError(f"column {field.name}: values may be null; the schema must allow it")
        if field.name in names:
            raise SchemaError(f"column {field.name}: asked for twice")
        names.append(field.name)
    return tuple(names)


def check_published(schema: Any) -> tuple[str, ...]:
    """The columns that a schema publishes, in its order.

    Args:
        schema: a Spark StructType

    Raises:
        SchemaError: a column cannot be published or has another type, or there is no body
    """
    names: list[str] = []
    for field in schema.fields:
        if field.name not in PUBLISHABLE:
            why = "tells of a delivery and cannot be published" if field.name in ALL else "unknown"
            raise SchemaError(
                f"column {field.name}: {why}; drop it, or rename it to one of "
                f"{', '.join(PUBLISHABLE)}"
            )
        kinds = (KINDS[field.name], *_ALSO_PUBLISHED.get(field.name, ()))
        if field.dataType.simpleString() not in kinds:
            raise SchemaError(
                f"column {field.name}: must be {' or '.join(kinds)}, and is "
                f"{field.dataType.simpleString()}"
            )
        if field.name in names:
            raise SchemaError(f"column {field.name}: listed twice")
        names.append(field.name)
    if TYPED in names and "headers" in names:
        raise SchemaError(f"column {TYPED}: contains the same as column headers; drop one of them")
    if "body" not in names:
        raise SchemaError("column body: required")
    return tuple(names)
