"""The ids written down here against the ones pamqp generated from the specification."""

from __future__ import annotations

from pamqp import commands
from pamqp import constants as pamqp_constants

from vouchmq.protocol import constants


def test_method_ids_are_those_of_the_specification() -> None:
    ours = {
        name: ids
        for name, ids in vars(constants).items()
        if isinstance(ids, tuple) and name not in {"NO_IDS", "ACCESS_REQUEST", "ACCESS_REQUEST_OK"}
    }
    theirs: dict[str, tuple[int, int]] = {}
    for index, method_class in commands.INDEX_MAPPING.items():
        words = "".join("_" + ch if ch.isupper() else ch for ch in method_class.__qualname__)
        theirs[words.replace(".", "").lstrip("_").upper()] = divmod(index, 0x10000)
    assert ours == theirs


def test_an_index_is_the_one_that_pamqp_has() -> None:
    assert constants.index_of(constants.BASIC_DELIVER) == commands.Basic.Deliver.index


def test_framing_numbers_are_those_of_the_specification() -> None:
    assert constants.FRAME_METHOD == pamqp_constants.FRAME_METHOD
    assert constants.FRAME_HEADER == pamqp_constants.FRAME_HEADER
    assert constants.FRAME_BODY == pamqp_constants.FRAME_BODY
    assert constants.FRAME_HEARTBEAT == pamqp_constants.FRAME_HEARTBEAT
    assert constants.FRAME_END == pamqp_constants.FRAME_END
    assert bytes((constants.FRAME_END,)) == constants.FRAME_END_OCTET
    assert constants.FRAME_MIN_SIZE == pamqp_constants.FRAME_MIN_SIZE
