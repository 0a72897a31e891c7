"""Runs inside a network namespace of its own, where nothing is but what it makes.

`python -m privacy.inside MODE` prints what happened as JSON. A user and a mount namespace go with it, so that
it is root there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import mead
from mead.core.options import Options
from mead.core.result import Err
from mead.router import Slot, Slots
from mead.settings import parse
from mead.testing.canaries import Canaries
from mead.testing.recording import Recorder, RecordingDns, RecordingServer, echo_all
from privacy.models import WIRES, Book, Model, Tools
from privacy.plan import Turn

FAR, NEAR = "203.0.113.1", "203.0.113.2"
"""Addresses that are kept for examples: they are nowhere, and nothing takes them for local."""
FAR_NAME = "cloud.example"
_ALL_PROTOCOLS, _IPV4, _TCP, _UDP, _SYN = 3, 0x0800, 6, 17, 2


class Packet(NamedTuple):
    """An IPv4 packet that was seen: where to, which port if it has one, and whether it opens a connection or
    carries anything, as all but TCP's own replies and farewells do."""

    address: str
    port: int
    counts: bool


class Sniffer:
    """Sees every packet of the namespace, on whichever interface."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024 * 1024)
        self._socket.setblocking(False)

    def __enter__(self) -> Sniffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def seen(self) -> list[Packet]:
        """The packets since it was asked last."""
        packets = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, where = self._socket.recvfrom(65535)
                if where[1] == _IPV4:
                    packets.append(_packet(frame[14:]))
        return packets

    def outside(self) -> list[str]:
        """Where those led that count and were not for this machine itself."""
        found = [
            f"{p.address}:{p.port}" for p in self.seen() if p.counts and not p.address.startswith("127.")
        ]
        return list(dict.fromkeys(found))


def _packet(ip: bytes) -> Packet:
    begins, length = (ip[0] & 15) * 4, struct.unpack_from("!H", ip, 2)[0]
    port = struct.unpack_from("!H", ip, begins + 2)[0] if ip[9] in (_TCP, _UDP) else 0
    counts = True
    if ip[9] == _TCP:
        carries = length - begins - (ip[begins + 12] >> 4) * 4
        counts = carries > 0 or bool(ip[begins + 13] & _SYN)
    return Packet(socket.inet_ntoa(ip[16:20]), port, counts)


def run(*command: str) -> None:
    """Runs a command that must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


@contextlib.contextmanager
def asking(nameserver: str) -> Iterator[None]:
    """Names are asked for there. The mount is this namespace's own and ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resolv.conf"
        path.write_text(f"nameserver {nameserver}\noptions timeout:1 attempts:1\n")
        run("mount", "--bind", str(path), os.path.realpath("/etc/resolv.conf"))
        try:
            yield
        finally:
            run("umount", os.path.realpath("/etc/resolv.conf"))


# Turns

_TURN = Turn(
    route="local",
    kind="easy",
    tools=None,
    rounds=1,
    calls=2,
    quoting="plain",
    streams=False,
    allow_private=False,
    tells_card=False,
    refuses=False,
    end="ok",
    ends_at=9,
    stop="turn",
    hangs=False,
    after_rounds=0,
    repeats=False,
)


class Session:
    """A session whose local model is in this namespace, and the canaries of its local turns."""

    def __init__(self, runtime: mead.Runtime, local: Model, canaries: Canaries) -> None:
        self._runtime = runtime
        self._local = local
        self._canaries = canaries
        self.ended: list[str] = []
        self._session_id = ""

    async def turn(self, text: str, *, streams: bool = False, fails: bool = False, **keywords: Any) -> str:
        """Takes a turn, and says how it ended."""
        self._local.begin(msgspec.structs.replace(_TURN, end="error", ends_at=1) if fails else _TURN)
        if not self._session_id:
            self._session_id = await self._runtime.start_session()
        result: Any = None
        if streams:
            async for event in self._runtime.stream_turn(self._session_id, text, **keywords):
                if isinstance(event, mead.Finished):
                    result = event.result
        else:
            result = await self._runtime.submit_turn(self._session_id, text, **keywords)
        ended = result.reason.tag if isinstance(result, Err) else f"ok, {result.value.tool_calls} calls"
        self.ended.append(ended)
        return ended

    async def local_turns(self) -> None:
        """Local turns of every kind."""
        for streams in (False, True):
            for tools in (None, "effect", "none"):
                text = f"think of {self._canaries.make('text')}"
                await self.turn(text, streams=streams, route="local", tools=tools)
        await self.turn(f"private: {self._canaries.make('text')}", tools="none")
        await self.turn("my card is 4012 8888 8888 1881", tools="none")
        made = await self._runtime.compact(self._session_id)
        self.ended.append(made.reason.tag if isinstance(made, Err) else "ok, compact")
        await self.turn(f"this fails, {self._canaries.make('text')}", fails=True, route="local")


@contextlib.asynccontextmanager
async def sessions(wire: str, cloud_url: str) -> AsyncIterator[tuple[Session, Canaries]]:
    """A session with a local model that speaks this format, and a cloud model at an address."""
    canaries = Canaries(wire)
    book = Book()
    local, tools = Model("local", WIRES[wire], canaries.make, book), Tools(canaries.make, book)
    server = RecordingServer(local.recorder, local.respond, routes={"/api/show": local.respond})
    async with server:
        slots = Slots(
            local=Slot(local.wire.make(server.url), Options(model="m")),
            cloud=Slot(WIRES["openai"].make(cloud_url, slot="cloud"), Options(model="m")),
        )
        async with mead.Runtime(slots=slots, tools=tools.functions()) as runtime:
            yield Session(runtime, local, canaries), canaries


# What is tried


async def without_a_network() -> dict[str, Any]:
    """There is loopback and nothing else."""
    told: dict[str, Any] = {}
    with Sniffer() as sniffer:
        for wire in ("ollama", "openai"):
            async with sessions(wire, f"http://{FAR}") as (session, _):
                await session.local_turns()
                told[wire] = {"ended": session.ended[:], "outside": sniffer.outside()}
                told[wire]["cloud"] = await session.turn("and now?", route="cloud")
    return told


class Far:
    """The process on the other side of a pair of interfaces, in a namespace of its own. Use as `with`."""

    def __enter__(self) -> Far:
        run("ip", "link", "add", "name", "near0", "type", "veth", "peer", "name", "far0")
        with contextlib.suppress(OSError):  # router solicitations are none of ours
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        command = ["unshare", "-n", sys.executable, "-m", "privacy.inside", "far"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()  # it is in its own namespace now
        run("ip", "link", "set", "far0", "netns", str(self._process.pid))
        run("ip", "addr", "add", f"{NEAR}/24", "dev", "near0")
        run("ip", "link", "set", "near0", "up")
        self._say("begin")
        self._line()  # it listens
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(10)

    def end(self) -> dict[str, Any]:
        """What it has seen."""
        self._say("end")
        told: dict[str, Any] = json.loads(self._line())
        return told

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


async def with_a_cloud() -> dict[str, Any]:
    """There is a cloud, in a namespace behind a pair of interfaces, and a name server with it."""
    told: dict[str, Any] = {}
    with Far() as far, asking(FAR), Sniffer() as sniffer:
        for wire in ("ollama", "openai"):
            async with sessions(wire, f"http://{FAR_NAME}") as (session, canaries):
                await session.local_turns()
                told[wire] = {"ended": session.ended[:], "outside": sniffer.outside()}
                told[wire]["planted"] = [canary.text for canary in canaries.made]
                told[wire]["cloud"] = await session.turn("openly", route="cloud", tools="none")
                told[wire]["then outside"] = sniffer.outside()
        told["far"] = far.end()
    return told


async def far() -> dict[str, Any]:
    """The cloud's side: a model that quotes everything, and a name server that knows it."""

    async def line(wanted: str) -> None:
        assert (await asyncio.to_thread(sys.stdin.readline)).strip() == wanted

    _say("here")
    await line("begin")
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{FAR}/24", "dev", "far0")
    run("ip", "link", "set", "far0", "up")
    cloud, names = Recorder("cloud"), Recorder("names")
    server = RecordingServer(cloud, echo_all, host=FAR, port=80)
    dns = RecordingDns(names, {FAR_NAME: [FAR]}, host=FAR, port=53)
    async with server, dns:
        _say("listening")
        await line("end")
    received = b"".join([bytes(piece.data) for piece in (*cloud.pieces, *names.pieces)])
    return {"received": received.decode("latin-1"), "asked": dns.asked, "pieces": len(cloud.pieces)}


async def with_a_turning_name() -> dict[str, Any]:
    """The name of the local slot's server leads to this machine when it is checked, and elsewhere later."""
    run("ip", "addr", "add", f"{FAR}/32", "dev", "lo")
    told: dict[str, Any] = {}
    canaries = Canaries("turning")
    local = Model("local", WIRES["openai"], canaries.make, Book())
    async with contextlib.AsyncExitStack() as stack:
        server = RecordingServer(local.recorder, local.respond, host="0.0.0.0")
        await stack.enter_async_context(server)
        for name, more in (("refused", ""), ("allowed", "allow_remote = true")):
            names = {f"{name}.example": ["127.0.0.1", FAR] if name == "refused" else [FAR]}
            async with RecordingDns(Recorder("names"), names, port=53) as dns:
                with asking("127.0.0.1"), Sniffer() as sniffer:
                    url = f"http://{name}.example:{server.port}/v1"
                    slot = f'provider = "openai"\nmodel = "m"\nbase_url = "{url}"\n{more}'
                    settings = parse(f"[router.slots.local]\n{slot}", environ={"HOME": "/nowhere"})
                    async with mead.Runtime(settings) as runtime:
                        session = Session(runtime, local, canaries)
                        ended = await session.turn(f"think of {canaries.make('text')}", route="local")
                    told[name] = {"ended": ended, "outside": sniffer.outside(), "asked": dns.asked}
                    told[name]["pieces"] = len(local.recorder.pieces)
    return told


MODES = {
    "without_a_network": without_a_network,
    "with_a_cloud": with_a_cloud,
    "with_a_turning_name": with_a_turning_name,
    "far": far,
}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] != "far":
        run("ip", "link", "set", "lo", "up")
    _say(json.dumps(asyncio.run(MODES[sys.argv[1]]())))
