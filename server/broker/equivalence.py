"""Whether a declaration agrees with what exists, and the text that says where it does not.

Spec: EXCH-08, QUEUE-21, QUEUE-22
"""

from __future__ import annotations

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, render, same_value, type_name


def require_same_flag(field: str, entity: str, received: bool, current: bool) -> None:
    """Compare one boolean of a declaration; `entity` is the {Q} or {X} of the text.

    Raises:
        PreconditionFailed: 406, they differ.
    """
    if received is not current:
        raise _inequivalent(field, entity, f"'{_truth(received)}'", f"'{_truth(current)}'")


def require_same_text(field: str, entity: str, received: str, current: str) -> None:
    """Compare one string of a declaration.

    Raises:
        PreconditionFailed: 406, they differ.
    """
    if received != current:
        raise _inequivalent(field, entity, f"'{received}'", f"'{current}'")


def require_same_argument(
    name: str, entity: str, received: Field | None, current: Field | None
) -> None:
    """Compare one argument, None being a missing one.

    Raises:
        PreconditionFailed: 406, the values differ or one of the two is missing.

    Spec: QUEUE-22, QUEUE-23
    """
    if same_value(received, current):
        return
    if received is not None and current is not None:
        raise _inequivalent(name, entity, f"'{render(received)}'", f"'{render(current)}'")
    raise _inequivalent(name, entity, _typed(received), _typed(current))


def _inequivalent(field: str, entity: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{field}' for {entity}: received {received} but current is {current}"
    )


def _typed(field: Field | None) -> str:
    if field is None:
        return "none"
    return f"the value '{render(field)}' of type '{type_name(field)}'"


def _truth(flag: bool) -> str:
    return "true" if flag else "false"
