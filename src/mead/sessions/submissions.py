"""Begins turns: those of sessions, and requests that bring their own history."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, get_args

import msgspec

from mead.core.conversation import EncodedMessages
from mead.core.options import BusyPolicy, Options, TurnOptions
from mead.core.reasons import IdempotencyConflict, InvalidOptions, TurnReason
from mead.core.result import Err
from mead.core.turns import Handler
from mead.ledger.accounts import Accounts
from mead.sessions._input import check_choice, check_timeout
from mead.sessions.approvals import Approver
from mead.sessions.events import TurnEvent
from mead.sessions.journal import TurnJournal, request_hash
from mead.sessions.keywords import TurnKeywords
from mead.sessions.private_texts import Brought, PrivateTexts
from mead.sessions.requests import Requests
from mead.sessions.run import Asks, SentRecord, TurnRun
from mead.sessions.session import Session
from mead.sessions.turn_texts import LooksFor, RequestTexts, SessionTexts
from mead.settings import Settings
from mead.storage import Store
from mead.storage._fingerprints import FingerprintLog

TURN_TIMEOUT_S = 30.0
"""A turn's deadline where neither settings, session nor turn set one (S3)."""

OnEvent: TypeAlias = Callable[[TurnEvent], None] | None
_KEY_CONFLICT = IdempotencyConflict(detail="the idempotency key is in use, with another request")


class Submissions:
    """Checks what a turn asks for and hands it to its session. Nothing is awaited here: what was found free
    is still free when it is taken. `log` keeps fingerprints where there is no store."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store | None,
        log: FingerprintLog | None,
        private: PrivateTexts,
        accounts: Accounts,
        approver: Approver | None,
        on_sent: Callable[[SentRecord], None],
        has_cloud: bool,
    ) -> None:
        self.requests = Requests()
        self._settings = settings
        self._store = store
        self._log = log
        self._private = private
        self._accounts = accounts
        self._approver = approver
        self._on_sent = on_sent
        self._has_cloud = has_cloud

    def turn(
        self,
        session: Session,
        newest: EncodedMessages,
        options: TurnOptions,
        turn: TurnKeywords,
        on_event: OnEvent,
    ) -> TurnRun | Err[TurnReason]:
        """Begins a session's turn, has it wait, or joins the one that runs under its key. Raises `ValueError`
        for wrong words."""
        if (earlier := self._earlier(session, newest, options)) is not None:
            return earlier
        busy = turn.get("busy") or session.busy
        check_choice("busy", busy, get_args(BusyPolicy))
        timeout_s = _timeout_s(session, turn)
        if (refusal := session.refusal(busy)) is not None:
            return session.refuse(refusal)
        looks_for = self.looks_for(turn)
        texts = SessionTexts(self._private, session.owner, newest, self._keep(session), looks_for=looks_for)
        run = self._run(session, newest, options, turn, timeout_s, on_event, texts)
        session.submit(run, busy, self._settings.sessions.queue_timeout_s)
        return run

    def request(
        self,
        owner: str,
        handler: Handler,
        newest: EncodedMessages,
        brought: Brought,
        options: TurnOptions,
        turn: TurnKeywords,
        on_event: OnEvent,
    ) -> TurnRun | Err[TurnReason]:
        """Begins a request, or joins the one that runs under its key. Raises `ValueError` for wrong words."""
        session = self.requests.take(owner, options.idempotency_key, self._maker(owner, handler))
        try:
            if (earlier := self._earlier(session, newest, options)) is not None:
                self.requests.give_back(session)
                return earlier
            timeout_s = _timeout_s(session, turn)
        except ValueError:
            self.requests.give_back(session)
            raise
        texts = RequestTexts(self._private, owner, newest, self._keep(session), brought=brought)
        run = self._run(session, newest, options, turn, timeout_s, on_event, texts)
        session.submit(run, "queue", self._settings.sessions.queue_timeout_s)
        run.result.add_done_callback(lambda _: self.requests.give_back(session))
        return run

    def refuse_request(self, owner: str, handler: Handler, reason: TurnReason) -> Err[TurnReason]:
        """Tells of a request that is not taken."""
        session = self.requests.take(owner, None, self._maker(owner, handler))
        self.requests.give_back(session)
        return session.refuse(reason)

    def looks_for(self, turn: TurnKeywords) -> LooksFor | None:
        """What of a session's turn is compared with private text; without a cloud model nothing is."""
        if not self._has_cloud:
            return None
        return LooksFor(typed=turn.get("from_client", False), own_system=self._settings.sessions.system)

    def _earlier(
        self, session: Session, newest: EncodedMessages, options: TurnOptions
    ) -> TurnRun | Err[TurnReason] | None:
        """The turn that runs under the same key; of one that is over, the journal tells."""
        if options.idempotency_key is None:
            return None
        if self._store is None:
            return session.refuse(InvalidOptions(detail="an idempotency key needs a store"))
        earlier = session.keyed(options.idempotency_key)
        if earlier is None:
            return None
        asked = msgspec.structs.replace(options, options=options.options.over(session.options))
        same = request_hash(newest, asked) == request_hash(earlier.newest, earlier.options)
        return earlier if same else session.refuse(_KEY_CONFLICT)

    def _maker(self, owner: str, handler: Handler) -> Callable[[str], Session]:
        """Makes a session that requests run in. It is stored with the first one."""
        sessions = self._settings.sessions
        return lambda session_id: Session(
            session_id,
            owner,
            handler,
            turn_timeout_s=sessions.turn_timeout_s or TURN_TIMEOUT_S,
            options=Options(system=sessions.system),
            kind="requests",
        )

    def _run(
        self,
        session: Session,
        newest: EncodedMessages,
        options: TurnOptions,
        turn: TurnKeywords,
        timeout_s: float,
        on_event: OnEvent,
        texts: SessionTexts,
    ) -> TurnRun:
        return TurnRun(
            newest,
            options,
            session=session,
            number=session.next_number(),
            timeout_s=timeout_s,
            on_sent=self._on_sent,
            on_event=on_event,
            journal=self._journal(session, newest),
            asks=Asks(
                approver=self._approver,
                reader=on_event is not None and turn.get("asks", False),
                timeout_s=self._settings.mcp.approval_timeout_s,
            ),
            texts=texts,
        )

    def _journal(
        self, session: Session, newest: EncodedMessages
    ) -> Callable[[TurnOptions], TurnJournal] | None:
        store = self._store
        if store is None:
            return None
        return lambda options: TurnJournal(store, session, options, newest, self._accounts.cost)

    def _keep(self, session: Session) -> Callable[[int, bytes], None]:
        """Keeps a turn's fingerprints in this process; the journal stores them."""
        return partial(self._kept, session)

    def _kept(self, session: Session, number: int, fingerprints: bytes) -> None:
        if self._log is not None:
            self._log.add(session.owner, session.session_id, number, time.time(), fingerprints)
        else:
            self._private.learn(session.owner, fingerprints)


def _timeout_s(session: Session, turn: TurnKeywords) -> float:
    timeout_s = turn.get("turn_timeout_s")
    timeout_s = session.turn_timeout_s if timeout_s is None else timeout_s
    check_timeout(timeout_s)
    return timeout_s
