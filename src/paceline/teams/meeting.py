"""Where nodes that may come and go find each other: torchft's lighthouse, and a store beside it.

The lighthouse knows who is alive and says who takes part in what comes next. The store carries the
addresses of new connections and a sign of life of each node. Both live in a process of their own,
``paceline meet``, so that the job depends on none of its nodes.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch._C._distributed_c10d import Store, TCPStore

from paceline.teams.bound_store import BoundStore
from paceline.teams.team import TeamError

if TYPE_CHECKING:
    from torchft.coordination import LighthouseClient

MEETING_VARIABLE = "PACELINE_MEETING"
NODE_VARIABLE = "PACELINE_NODE"

_SETTINGS = "paceline/meeting"
_ANSWER_S = 10.0
# How long one question may take before it is asked anew.
_QUESTION_S = 60.0
_TICK_MS = 50


@dataclass(frozen=True, kw_only=True)
class MeetingSettings:
    """What all nodes of a job must agree on about losing each other."""

    num_nodes: int
    """The nodes that the job begins with."""
    silence_s: float = 10.0
    """A node without a sign of life for so long is lost."""
    timeout_s: float = 600.0
    """How long nodes wait for one that lives and does not come; and for the meeting itself."""

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError(f"num_nodes={self.num_nodes} must be at least 1")
        if not 0 < self.silence_s <= self.timeout_s:
            raise ValueError(
                f"silence_s={self.silence_s:g} must be more than 0 and no longer than "
                f"timeout_s={self.timeout_s:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A node in a quorum, as it introduced itself."""

    replica: str
    """Names one life of a node: a node that returns has another."""
    node: int
    num_workers: int
    host: str
    born_s: float
    """When this life began, by the node's own clock."""
    round: int
    """How many things it has done together with others."""
    kind: str
    """What it is about to do."""
    groups: str
    """The connections that it has; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The nodes that do the next thing together; the same for all of them."""

    name: str
    """That no other quorum of this meeting has."""
    guests: tuple[Guest, ...]
    """In the order of their nodes."""

    def encode(self) -> bytes:
        """For the workers of a node."""
        return json.dumps({"name": self.name, "guests": [asdict(g) for g in self.guests]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From the first worker of the node."""
        fields = json.loads(data)
        return cls(name=fields["name"], guests=tuple(Guest(**each) for each in fields["guests"]))


class MeetingServer:
    """The meeting itself: a context manager; ``address`` is what the nodes are told."""

    def __init__(
        self, settings: MeetingSettings, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        lighthouse = _torchft().LighthouseServer
        self._store = BoundStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=_ANSWER_S),
            wait_for_workers=False,
        )
        self.address = f"{host}:{self._store.port}"
        bound = f"[{host}]" if ":" in host else host
        self._lighthouse = lighthouse(
            bind=f"{bound}:0",
            min_replicas=1,
            join_timeout_ms=round(1000 * settings.timeout_s),
            quorum_tick_ms=_TICK_MS,
            heartbeat_timeout_ms=round(1000 * settings.silence_s),
        )
        # The lighthouse calls itself by the machine's name, which others may not know.
        lighthouse_port = int(self._lighthouse.address().rpartition(":")[2])
        told = {**asdict(settings), "lighthouse": f"http://{bound}:{lighthouse_port}"}
        self._store.set(_SETTINGS, json.dumps(told))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; jobs that still meet here end."""
        self._lighthouse.shutdown()


class MeetingPoint:
    """A meeting as one worker sees it. Connections are opened when they are needed."""

    def __init__(self, address: str, *, timeout_s: float | None = None) -> None:
        self._host, self._port = _parse_address(address)
        self.address = address
        begun_s = time.monotonic()
        while True:
            try:
                told = self._hear()
                break
            except RuntimeError as error:
                if time.monotonic() - begun_s > (timeout_s or 120.0):
                    raise TeamError(
                        f"nobody answers at the meeting {address}; start it there with "
                        "'paceline meet'"
                    ) from error
                time.sleep(0.5)
        del told["lighthouse"]
        self.settings = MeetingSettings(**told)

    def _hear(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.store().get(_SETTINGS))
        return told

    @property
    def port(self) -> int:
        """The store's port."""
        return self._port

    def store(self, timeout_s: float = _ANSWER_S) -> Store:
        """A new connection to the store."""
        limit = timedelta(seconds=timeout_s)
        try:
            return TCPStore(self._host, self._port, None, False, limit, wait_for_workers=False)
        except RuntimeError as error:
            raise TeamError(f"the meeting {self.address} cannot be reached") from error

    def lighthouse(self) -> LighthouseClient:
        """A new connection to the lighthouse. Of a meeting that was started again it is another."""
        client: LighthouseClient = _torchft().LighthouseClient(
            self._hear()["lighthouse"], timedelta(seconds=_ANSWER_S)
        )
        return client


class Presence:
    """One life of a node at a meeting, kept by the node's first worker: its signs of life."""

    def __init__(self, point: MeetingPoint, replica: str) -> None:
        self._point = point
        self._replica = replica
        self._client: LighthouseClient | None = None
        self._notes: dict[str, str] = {}
        self._ended = threading.Event()
        self._beat_s = point.settings.silence_s / 5
        self._beats = [
            threading.Thread(target=self._keep, args=[work], name="paceline-presence", daemon=True)
            for work in (self._beat_at_lighthouse, self._beat_in_store)
        ]
        for thread in self._beats:
            thread.start()

    def ask(self, *, own: Guest, timeout_s: float) -> Quorum:
        """Who does the next thing together; blocks until that is known.

        Args:
            own: This node, and what it is about to do.
            timeout_s: After which it is a ``TeamError``.

        """
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                if self._client is None:
                    self._client = self._point.lighthouse()
                found = self._client.quorum(
                    self._replica,
                    timedelta(seconds=min(_QUESTION_S, left_s)),
                    address="",
                    store_address="",
                    step=own.round,
                    world_size=own.num_workers,
                    shrink_only=False,
                    data=asdict(own),
                )
            except (RuntimeError, TimeoutError, OSError):
                self._client = None
                self._ended.wait(0.2)
                continue
            guests = [Guest(**_plain(member.data)) for member in found.participants]
            name = f"{found.quorum_id}-{found.created.seconds}-{found.created.nanos}"
            return Quorum(name=name, guests=tuple(sorted(guests, key=lambda g: g.node)))
        raise TimeoutError

    def tell(self, key: str, value: str) -> None:
        """Put something into the store, and again when the meeting was started again."""
        self._notes[key] = value
        self._point.store().set(key, value)

    def close(self) -> None:
        """Give no more signs of life."""
        self._ended.set()
        for thread in self._beats:
            thread.join(1.0)

    def _keep(self, work: Any) -> None:
        while not self._ended.is_set():
            try:
                work()
            except (RuntimeError, TimeoutError, OSError, ValueError):
                # The link may be down; a new connection is tried when the time has come.
                self._ended.wait(self._beat_s)

    def _beat_at_lighthouse(self) -> None:
        client = self._point.lighthouse()
        while True:
            client.heartbeat(self._replica, timedelta(seconds=self._point.settings.silence_s))
            if self._ended.wait(self._beat_s):
                return

    def _beat_in_store(self) -> None:
        store = self._point.store(self._point.settings.silence_s)
        for key, value in dict(self._notes).items():
            store.set(key, value)
        for number in range(1 << 62):
            store.set(beat_key(self._replica), f"{number}")
            if self._ended.wait(self._beat_s):
                return


def beat_key(replica: str) -> str:
    """Where a node's sign of life is in the store."""
    return f"paceline/beats/{replica}"


def find_meeting(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """The meeting's address and this node's number, from the environment."""
    address, node = environment.get(MEETING_VARIABLE), environment.get(NODE_VARIABLE)
    if address is None or node is None:
        raise ValueError(
            "survive=True needs a meeting that outlives nodes: start 'paceline meet' on a machine "
            f"that stays, set {MEETING_VARIABLE}=HOST:PORT and {NODE_VARIABLE}=0, 1, … on the "
            "nodes, and start torchrun on each of them with --standalone ('paceline lab run "
            "--survive' does all of it)"
        )
    if not node.isdigit():
        raise ValueError(f"{NODE_VARIABLE}={node!r} must be the node's number, from 0")
    return address, int(node)


def _torchft() -> Any:
    # It tells of every question otherwise.
    os.environ.setdefault("RUST_LOG", "error")
    try:
        return importlib.import_module("torchft.coordination")
    except ImportError as missing:
        raise ValueError(
            "surviving the loss of a node needs torchft (pip install 'paceline[survive]')"
        ) from missing


def _plain(data: object) -> dict[str, Any]:
    assert isinstance(data, dict)
    return data


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{MEETING_VARIABLE}={address!r} is not understood; write HOST:PORT")
    return host.strip("[]"), int(port)
