"""Users, permissions, limits: shown and changed.

Spec: HTTP-24, HTTP-25, HTTP-28, HTTP-32
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from vouchmq.management.api.call import NO_CONTENT, Call, changed
from vouchmq.management.api.errors import bad_request, not_found
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.broker import CommandRefused, Row
from vouchmq.protocol.text import encode_text

SALT_BYTES: Final = 4
UNKNOWN: Final = "vhost_or_user_not_found"
LIMITS_OF_USERS: Final = {"max-connections": "max_connections", "max-channels": "max_channels"}
LIMITS_OF_VHOSTS: Final = {
    "max-connections": "max_connections",
    "max-queues": "max_queues",
    "max-exchanges": "max_exchanges",
}


class UserBody(Struct):
    """A user; without password and hash only a certificate lets in."""

    tags: str | list[str] | UnsetType = UNSET
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None


class UsersBody(Struct):
    """Names of users."""

    users: list[str]


class PermissionsBody(Struct):
    """Three patterns."""

    configure: str
    write: str
    read: str


class TopicPermissionsBody(Struct):
    """Two patterns for the keys of an exchange."""

    exchange: str
    write: str
    read: str


class LimitBody(Struct):
    """The value of a limit; negative: none."""

    value: int


async def users(call: Call) -> object:
    """All users."""
    rows = await call.broker.rows("users")
    return Page(call.query).of(sorted(map(_user, rows), key=_name_of))


async def users_without_permissions(call: Call) -> object:
    """Users who may not enter any virtual host."""
    permitted = {row["user"] for row in await call.broker.rows("permissions")}
    rows = [row for row in await call.broker.rows("users") if row["name"] not in permitted]
    return Page(call.query).of(sorted(map(_user, rows), key=_name_of))


async def user(call: Call) -> object:
    """One user."""
    return projected(_user(await _row(call)), call.query)


async def put_user(call: Call) -> object:
    """Make or change a user."""
    body = call.content(UserBody)
    if body.tags is UNSET:
        raise bad_request("tags_not_present")
    if body.password is not None and body.password_hash is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    given: dict[str, Any] = {}
    if body.password is not None:
        given["password"] = body.password
    elif body.password_hash is not None:
        given["password_hash"] = body.password_hash
    else:
        # Neither: nobody can log in with a password.
        given["password_hash"] = ""
    if body.hashing_algorithm is not None:
        given["hashing_algorithm"] = body.hashing_algorithm
    name, tags = call.names["user"], tags_of(body.tags)
    return changed(await call.do("put user", name=name, tags=tags, **given))


async def delete_user(call: Call) -> object:
    """Delete a user."""
    await call.do("delete user", name=call.names["user"])
    return NO_CONTENT


async def delete_users(call: Call) -> object:
    """Delete several users; those that are not there are no fault."""
    for name in call.content(UsersBody).users:
        try:
            await call.do("delete user", name=name)
        except CommandRefused as error:
            if error.code != 404:
                raise
    return NO_CONTENT


async def permissions(call: Call) -> object:
    """All permissions, those in a virtual host or those of a user."""
    return await _permissions(call, "permissions")


async def topic_permissions(call: Call) -> object:
    """The same for topics."""
    return await _permissions(call, "topic-permissions")


async def permission(call: Call) -> object:
    """What one user may do in one virtual host."""
    found = await _in_vhost(call, "permissions")
    return projected(found[0], call.query)


async def topic_permission(call: Call) -> object:
    """The same for topics: one entry for each exchange."""
    return Page(call.query).of(await _in_vhost(call, "topic-permissions"))


async def put_permissions(call: Call) -> object:
    """Give a user permissions in a virtual host."""
    body = call.content(PermissionsBody)
    return await _put_permissions(
        call, "put permissions", configure=body.configure, write=body.write, read=body.read
    )


async def put_topic_permissions(call: Call) -> object:
    """The same for the topics of an exchange."""
    body = call.content(TopicPermissionsBody)
    return await _put_permissions(
        call, "put topic-permissions", exchange=body.exchange, write=body.write, read=body.read
    )


async def delete_permissions(call: Call) -> object:
    """Take a user's permissions in a virtual host."""
    await call.do("delete permissions", name=call.names["user"], vhost=call.names["vhost"])
    return NO_CONTENT


async def delete_topic_permissions(call: Call) -> object:
    """Take a user's topic permissions in a virtual host."""
    await call.do("delete topic-permissions", name=call.names["user"], vhost=call.names["vhost"])
    return NO_CONTENT


async def user_limits(call: Call) -> object:
    """The limits of all users that have any, or of one: of others for users who monitor."""
    name = call.names.get("user")
    if name is not None:
        call.require_self(name)
    rows = await call.broker.rows("users", name=name)
    if name is not None and not rows:
        raise not_found()
    found = [{"user": row["name"], "value": limits_of(row, LIMITS_OF_USERS)} for row in rows]
    return Page(call.query).of([each for each in found if each["value"]])


async def vhost_limits(call: Call) -> object:
    """The limits of all virtual hosts that have any, or of one."""
    rows = await call.broker.rows("vhosts", vhost=await call.seen_vhost())
    found = [
        {"vhost": row["name"], "value": limits_of(row, LIMITS_OF_VHOSTS)}
        for row in rows
        if call.visitor.may_see(row["name"])
    ]
    return Page(call.query).of([each for each in found if each["value"]])


async def put_user_limit(call: Call) -> object:
    """Set a limit of a user."""
    value = call.content(LimitBody).value
    await call.do("put user-limit", name=call.names["user"], limit=call.names["name"], value=value)
    return NO_CONTENT


async def delete_user_limit(call: Call) -> object:
    """Remove a limit of a user."""
    await call.do("delete user-limit", name=call.names["user"], limit=call.names["name"])
    return NO_CONTENT


async def put_vhost_limit(call: Call) -> object:
    """Set a limit of a virtual host."""
    value = call.content(LimitBody).value
    name, limit = call.names["vhost"], call.names["name"]
    await call.do("put vhost-limit", name=name, limit=limit, value=value)
    return NO_CONTENT


async def delete_vhost_limit(call: Call) -> object:
    """Remove a limit of a virtual host."""
    await call.do("delete vhost-limit", name=call.names["vhost"], limit=call.names["name"])
    return NO_CONTENT


async def hash_password(call: Call) -> object:
    """The salted SHA-256 of a password, for definitions."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = hashlib.sha256(salt + encode_text(call.names["password"])).digest()
    return {"ok": base64.b64encode(salt + digest).decode()}


def tags_of(given: str | list[str]) -> list[str]:
    """Tags as a list; a text has them separated by commas."""
    words = given.split(",") if isinstance(given, str) else given
    return [word.strip() for word in words if word.strip()]


def limits_of(row: Row, names: dict[str, str]) -> dict[str, int]:
    """The limits that are set."""
    return {name: row[column] for name, column in names.items() if row[column] >= 0}


def _user(row: Row) -> Row:
    return {
        "name": row["name"],
        "hashing_algorithm": row["hashing_algorithm"],
        "password_hash": row["password_hash"],
        "tags": row["tags"],
        "limits": limits_of(row, LIMITS_OF_USERS),
    }


def _name_of(item: Row) -> str:
    return str(item["name"])


async def _row(call: Call) -> Row:
    rows = await call.broker.rows("users", name=call.names["user"])
    if not rows:
        raise not_found()
    return rows[0]


async def _permissions(call: Call, listing: str) -> object:
    vhost = await call.vhost()
    user = call.names.get("user")
    if user is not None:
        await _row(call)
    rows = await call.broker.rows(listing, vhost=vhost)
    found = [row for row in rows if user in {None, row["user"]}]
    found.sort(key=lambda row: (str(row["vhost"]), str(row["user"])))
    return Page(call.query).of(found)


async def _in_vhost(call: Call, listing: str) -> list[Row]:
    """Those of the user in the virtual host of the path.

    Raises:
        ApiError: 404, there are none
    """
    rows = await call.broker.rows(listing, vhost=await call.vhost())
    found = [row for row in rows if row["user"] == call.names["user"]]
    if not found:
        raise not_found()
    return found


async def _put_permissions(call: Call, command: str, **patterns: str) -> object:
    user, vhost = call.names["user"], call.names["vhost"]
    try:
        return changed(await call.do(command, name=user, vhost=vhost, **patterns))
    except CommandRefused as error:
        if error.code != 404:
            raise
        raise bad_request(UNKNOWN) from None
