"""Applies definitions to a running broker: nothing of a file that it would refuse a part of.

    content ─▶ validated on a dry run of the broker ─▶ applied to the broker itself

The dry run knows every exchange and queue that there is, and refuses what the broker would refuse.
Both go step by step, so that clients are served meanwhile (LIMIT-23). What these change of the very
things that are in the file may make the broker refuse them after all: then the rest is applied, and
`PartlyAppliedError` says what is not. What is in the file is made or changed, and nothing is
deleted but policies that an earlier reading of a file has brought and that it does not hold any
more. All of it is kept in the data directory. Must not know files.

Spec: HTTP-41, HTTP-42, HTTP-43, POLICY-04, AUTH-07
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.text import shown_values
from vouchmq.server.auth.authenticator import check_account
from vouchmq.server.auth.passwords import SCRYPT
from vouchmq.server.auth.users import User, grant_of
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.definitions import GlobalParameterSet, ParameterSet, VHostSet
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.exchange import Exchange, check_type
from vouchmq.server.broker.features.options import InvalidPolicy
from vouchmq.server.broker.names import check_exchange_name, check_queue_name
from vouchmq.server.definitions.document import DefinitionsError
from vouchmq.server.definitions.export import plain_table
from vouchmq.server.definitions.file import APPLIED_FILE, TopicEntry
from vouchmq.server.settings.validation import Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.protocol.fields import Table
    from vouchmq.server.auth.authenticator import Authenticator
    from vouchmq.server.broker.policy.policies import Policy
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.queues.spec import QueueLike, QueueSpec
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.definitions.file import (
        BindingEntry,
        Content,
        ExchangeEntry,
        PermissionEntry,
        QueueEntry,
    )

log = structlog.get_logger(__name__)


class DryRunQueue:
    """A queue of which only the declaration matters."""

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self.ready_count = 0
        self.consumer_count = 0
        self.store_ids: list[int] = []
        self.counters = QueueCounters()
        self.is_paused = False

    def pause(self, *, is_paused: bool) -> None:
        """See `QueueLike`."""
        self.is_paused = is_paused

    def used(self) -> None:
        """See `QueueLike`."""

    def purge_some(self, most: int) -> int:
        """See `QueueLike`."""
        del most
        return 0

    def purge(self) -> int:
        """See `QueueLike`."""
        return 0

    def deleted(self) -> None:
        """See `QueueLike`."""


def empty_dry_run() -> Broker[QueueLike]:
    """A broker without anything, which keeps nothing."""
    return Broker(
        new_queue=DryRunQueue,
        define=lambda _: 0,
        drop_queue=lambda _: 0,
        random_name=lambda: "",
        relaxed_redeclare=False,
    )


class PartlyAppliedError(DefinitionsError):
    """Some of a file was refused because it changed while the file was applied."""


def copying(broker: Broker[Queue], content: Content, dry_run: Broker[QueueLike]) -> Iterator[None]:
    """Give a dry run the same virtual hosts, exchanges, queues and limits, step by step.

    What the content changes nothing of is not copied: a broker may have very many queues.
    """
    sources: dict[str, dict[str, None]] = {}
    for binding in content.bindings:
        sources.setdefault(binding.vhost, {})[binding.source] = None
        yield
    for vhost in list(broker.vhosts.values()):
        copy, _ = dry_run.create_vhost(vhost.name)
        copy.adopt(vhost.settings())
        copy.exchanges.update(vhost.exchanges)
        copy.queues.update(vhost.queues)
        copy.delay_queues.update(vhost.delay_queues)
        for name in sources.get(vhost.name, ()):
            each = copy.exchanges.get(name)
            if each is not None:
                flags = (each.durable, each.auto_delete, each.internal)
                copy.exchanges[name] = Exchange(name, each.vhost, each.type, *flags, each.arguments)
            yield


def dry_run_of(broker: Broker[Queue], content: Content) -> Broker[QueueLike]:
    """A broker with the same virtual hosts, exchanges, queues and limits; it keeps nothing."""
    dry_run: Broker[QueueLike] = empty_dry_run()
    drain(copying(broker, content, dry_run))
    return dry_run


def drain(steps: Iterator[None]) -> None:
    """Do work step by step, while there are no others."""
    deque(steps, maxlen=0)


class Importer:
    """Applies files to one broker.

    Args:
        broker: whose virtual hosts
        authenticator: whose users
    """

    def __init__(self, broker: Broker[Queue], authenticator: Authenticator) -> None:
        self._broker = broker
        self._authenticator = authenticator

    def leave_out(self, content: Content) -> Iterator[None]:
        """Take what is there already out of the content, step by step (LIMIT-23).

        Then little is left to apply at once, where a file has changed a little.
        """
        vhosts = self._broker.vhosts
        exchanges, queues, bindings = content.exchanges, content.queues, content.bindings
        content.exchanges, content.queues, content.bindings = [], [], []
        for exchange in exchanges:
            if not _has_exchange(vhosts.get(exchange.vhost), exchange):
                content.exchanges.append(exchange)
            yield
        for queue in queues:
            if not _has_queue(vhosts.get(queue.vhost), queue):
                content.queues.append(queue)
            yield
        for binding in bindings:
            if not _has_binding(vhosts.get(binding.vhost), binding):
                content.bindings.append(binding)
            yield

    def apply(self, content: Content, *, is_file: bool = True) -> None:
        """As `applying`, in one step, while nobody is served."""
        drain(self.applying(content, is_file=is_file))

    def applying(self, content: Content, *, is_file: bool = True) -> Iterator[None]:
        """Make or change everything in the file, step by step; all is in force at the end.

        Only the definitions file takes back policies that it brought: whoever imports something
        else adds to what there is (HTTP-41).

        Raises:
            PartlyAppliedError: clients have changed meanwhile what is in the file
            DefinitionsError: with the places of all faults, and nothing has changed
        """
        broker, authenticator = self._broker, self._authenticator
        faults = Faults()
        yield from self._check_users(content, faults)
        dry_run = empty_dry_run()
        yield from copying(broker, content, dry_run)
        yield from validating(content, dry_run, faults)
        faults.refuse(DefinitionsError)
        del dry_run
        for user in content.users:
            authenticator.put(user.account)
            yield
        _make_vhosts(broker, content)
        yield from _limiting(broker, content, faults)
        yield from _setting_policies(broker, content, faults, is_file=is_file)
        yield from _declaring(broker, content, faults)
        yield from _binding(broker, content, faults)
        yield from self._permitting(content, faults)
        if content.skipped:
            log.warning("definitions.skipped", items=content.skipped)
        yield from self._setting_parameters(content, faults)
        # None, as the dry run had none, unless somebody has come in between.
        faults.refuse(PartlyAppliedError)

    def is_applied(self, content: Content) -> bool:
        """Whether the last file that was noted has the same text."""
        noted = self._broker.accounts.global_parameters.get(APPLIED_FILE)
        return noted is not None and noted.value == content.fingerprint

    def note_applied(self, content: Content) -> None:
        """Note which file was applied last, for the next start (HTTP-43)."""
        self._broker.accounts.change(GlobalParameterSet(APPLIED_FILE, content.fingerprint))

    @property
    def defined_lsn(self) -> int:
        """The LSN that an answer waits for when everything is applied."""
        lsns = [vhost.defined_lsn for vhost in self._broker.vhosts.values()]
        return max([self._broker.accounts.defined_lsn, *lsns])

    def _permitting(self, content: Content, faults: Faults) -> Iterator[None]:
        authenticator = self._authenticator
        grants: list[PermissionEntry | TopicEntry] = [*content.permissions, *content.topics]
        for entry in grants:
            if _vhost_of(self._broker, entry.where, entry.vhost, faults) is None:
                continue
            if authenticator.find(entry.user) is None:
                faults.add(f"{entry.where}.user", f"no user {entry.user!r}")
            elif isinstance(entry, TopicEntry):
                authenticator.permit_topics(
                    entry.user, entry.vhost, entry.exchange, entry.write, entry.read
                )
            else:
                authenticator.permit(entry.user, entry.vhost, *entry.patterns)
            yield
        for vhost in self._broker.vhosts.values():
            # Routes are remembered together with the verdict on who may use them (AUTH-07).
            vhost.generation += 1

    def _setting_parameters(self, content: Content, faults: Faults) -> Iterator[None]:
        accounts = self._broker.accounts
        for parameter in content.parameters:
            if _vhost_of(self._broker, parameter.where, parameter.vhost, faults) is not None:
                place = (parameter.vhost, parameter.component, parameter.name)
                accounts.change(ParameterSet(*place, parameter.value))
            yield
        for one in content.global_parameters:
            accounts.change(GlobalParameterSet(one.name, one.value))
            yield

    def _check_users(self, content: Content, faults: Faults) -> Iterator[None]:
        names = {user.account.name for user in content.users}
        for user in content.users:
            try:
                check_account(user.account)
                if user.account.password and user.account.hashing_algorithm == SCRYPT:
                    # It would keep everybody waiting.
                    raise ValueError(f"{SCRYPT} takes a password_hash, not a password")
            except ValueError as error:
                faults.add(user.where, str(error))
            yield
        grants: list[PermissionEntry | TopicEntry] = [*content.permissions, *content.topics]
        for entry in grants:
            if entry.user not in names and self._authenticator.find(entry.user) is None:
                faults.add(f"{entry.where}.user", f"no user {entry.user!r}")
            try:
                if isinstance(entry, TopicEntry):
                    User(entry.user).permit_topics("", "", entry.write, entry.read)
                else:
                    grant_of(*entry.patterns)
            except ValueError as error:
                faults.add(entry.where, str(error))
            yield


def _has_exchange(vhost: VHost[QueueLike] | None, entry: ExchangeEntry) -> bool:
    there = vhost.exchanges.get(entry.name) if vhost is not None else None
    return there is not None and (
        (there.type, there.durable, there.auto_delete, there.internal, there.arguments)
        == (entry.type, entry.durable, entry.auto_delete, entry.internal, entry.arguments)
    )


def _has_queue(vhost: VHost[QueueLike] | None, entry: QueueEntry) -> bool:
    there = vhost.queues.get(entry.name) if vhost is not None else None
    return there is not None and (
        (there.spec.durable, there.spec.exclusive_owner, there.spec.auto_delete)
        == (entry.durable, None, entry.auto_delete)
        and there.spec.arguments == entry.arguments
    )


def _has_binding(vhost: VHost[QueueLike] | None, entry: BindingEntry) -> bool:
    if vhost is None:
        return False
    ends = (entry.source, entry.kind, entry.destination)
    sought = Binding(*ends, entry.routing_key, entry.arguments)
    return vhost.bindings.find(sought.identity) is not None


def _limiting(broker: Broker[QueueLike], content: Content, faults: Faults) -> Iterator[None]:
    for entry in content.limits:
        vhost = _vhost_of(broker, entry.where, entry.vhost, faults)
        if vhost is not None:
            limits = {name.replace("-", "_"): value for name, value in entry.limits.items()}
            broker.put_vhost(vhost.settings().limited(**limits))
        yield


def validating(content: Content, dry_run: Broker[QueueLike], faults: Faults) -> Iterator[None]:
    """Find every entry that a broker like this one would refuse, step by step."""
    _make_vhosts(dry_run, content)
    grants: list[PermissionEntry | TopicEntry] = [*content.permissions, *content.topics]
    for permission in grants:
        _vhost_of(dry_run, permission.where, permission.vhost, faults)
        yield
    yield from _limiting(dry_run, content, faults)
    for parameter in content.parameters:
        _vhost_of(dry_run, parameter.where, parameter.vhost, faults)
        yield
    for each in content.policies:
        _vhost_of(dry_run, each.where, each.vhost, faults)
        try:
            each.policy.require_valid()
        except InvalidPolicy as error:
            faults.add(each.where, str(error))
        yield
    yield from _declaring(dry_run, content, faults)
    yield from _skipping(dry_run, content)
    yield from _binding(dry_run, content, faults)


def _make_vhosts(broker: Broker[QueueLike], content: Content) -> None:
    for entry in content.vhosts:
        vhost = broker.vhosts.get(entry.name)
        settings = vhost.settings() if vhost is not None else VHostSet(entry.name)
        said = {
            "description": entry.description,
            "tags": None if entry.tags is None else list(entry.tags),
            "default_queue_type": entry.default_queue_type,
            "is_protected": entry.protected_from_deletion,
        }
        given = {key: value for key, value in said.items() if value is not None}
        broker.put_vhost(replace(settings, **given))


def _setting_policies(
    broker: Broker[QueueLike], content: Content, faults: Faults, *, is_file: bool
) -> Iterator[None]:
    for each in content.policies:
        vhost = _vhost_of(broker, each.where, each.vhost, faults)
        if vhost is not None:
            vhost.policy_engine.set_policy(replace(each.policy, comes_from_file=is_file))
        yield
    if is_file:
        _drop_old_policies(broker, content)
    for one in list(broker.vhosts.values()):
        yield from one.policy_engine.settling()


def _drop_old_policies(broker: Broker[QueueLike], content: Content) -> None:
    """Policies that came from a file which does not hold them any more."""
    held = {(each.vhost, *_key(each.policy)) for each in content.policies}
    for vhost in broker.vhosts.values():
        for policy in list(vhost.policy_engine.policies):
            if policy.comes_from_file and (vhost.name, *_key(policy)) not in held:
                vhost.policy_engine.delete_policy(policy.name, is_operator=policy.is_operator)


def _key(policy: Policy) -> tuple[str, bool]:
    return policy.name, policy.is_operator


def _declaring(broker: Broker[QueueLike], content: Content, faults: Faults) -> Iterator[None]:
    for exchange in content.exchanges:
        with _told(exchange.where, faults):
            _declare_exchange(broker, exchange, faults)
        yield
    for queue in content.queues:
        with _told(queue.where, faults):
            _declare_queue(broker, queue, faults)
        yield


def _binding(broker: Broker[QueueLike], content: Content, faults: Faults) -> Iterator[None]:
    for binding in content.bindings:
        vhost = _vhost_of(broker, binding.where, binding.vhost, faults)
        if vhost is not None:
            ends = (binding.source, binding.kind, binding.destination)
            with _told(binding.where, faults):
                vhost.bind(*ends, binding.routing_key, binding.arguments, None)
        yield


def _skipping(broker: Broker[QueueLike], content: Content) -> Iterator[None]:
    """Take bindings out of the content to whose ends this broker cannot bind, step by step.

    RabbitMQ exports the bindings of internal exchanges without the exchanges, and some exchanges
    and queues of a file have been skipped. A binding to any other queue that is missing is a fault.
    """
    bindings, content.bindings = content.bindings, []
    for entry in bindings:
        vhost = broker.vhosts.get(entry.vhost)
        lacking = _lacking_end(vhost, entry, content) if vhost is not None else ""
        if lacking:
            content.skipped.append(f"{entry.where} of {lacking}")
        else:
            content.bindings.append(entry)
        yield


def _lacking_end(vhost: VHost[QueueLike], entry: BindingEntry, content: Content) -> str:
    """The exchange or queue for which a binding is skipped; empty if it is not."""
    for name in (entry.source, *([entry.destination] if entry.kind == "exchange" else ())):
        if name not in vhost.exchanges:
            return f"exchange {name!r}"
    queue = (entry.vhost, entry.destination)
    is_skipped = queue in content.skipped_queues and entry.destination not in vhost.queues
    return f"queue {entry.destination!r}" if entry.kind == "queue" and is_skipped else ""


def _declare_exchange(broker: Broker[QueueLike], entry: ExchangeEntry, faults: Faults) -> None:
    vhost = _vhost_of(broker, entry.where, entry.vhost, faults)
    if vhost is None:
        return
    check_type(entry.type)
    arguments = entry.arguments
    if entry.name in vhost.exchanges:
        arguments = _as_there(arguments, vhost.exchanges[entry.name].arguments)
    else:
        check_exchange_name(entry.name)
    vhost.declare_exchange(
        entry.name,
        entry.type,
        durable=entry.durable,
        auto_delete=entry.auto_delete,
        internal=entry.internal,
        arguments=arguments,
    )


def _declare_queue(broker: Broker[QueueLike], entry: QueueEntry, faults: Faults) -> None:
    vhost = _vhost_of(broker, entry.where, entry.vhost, faults)
    if vhost is None:
        return
    if entry.name not in vhost.queues:
        check_queue_name(entry.name)
    durable, auto_delete = entry.durable, entry.auto_delete
    arguments = entry.arguments
    if entry.type is None:
        # As if a client had declared it: an application that does finds the same queue (QUORUM-07).
        arguments = vhost.typed(
            arguments, durable=durable, exclusive=False, auto_delete=auto_delete
        )
    if entry.name in vhost.queues:
        arguments = _as_there(arguments, vhost.queues[entry.name].spec.arguments)
    vhost.declare_queue(
        entry.name,
        durable=durable,
        exclusive_owner=None,
        auto_delete=auto_delete,
        arguments=arguments,
    )


def _as_there(arguments: Table, there: Table) -> Table:
    """Arguments of an entry, or those of what is there if an export shows them so (FRAME-58)."""
    exact = plain_table(there)
    shows = shown_values(exact)
    return there if shows != exact and shows == plain_table(arguments) else arguments


def _vhost_of(
    broker: Broker[QueueLike], where: str, name: str, faults: Faults
) -> VHost[QueueLike] | None:
    vhost = broker.vhosts.get(name)
    if vhost is None:
        faults.add(f"{where}.vhost", f"no vhost {name!r}")
    return vhost


@contextmanager
def _told(where: str, faults: Faults) -> Iterator[None]:
    """What the broker refuses is told with its place in the file."""
    try:
        yield
    except AmqpError as error:
        faults.add(where, error.text)
