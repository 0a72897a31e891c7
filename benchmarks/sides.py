"""The two sides of each comparison: mead, and a bare aiohttp client that does the same work by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import aiohttp

import mead
from mead.providers.http import HttpClient
from mead.providers.openai_chat import OpenAIChat
from mead.settings import McpServerSettings

Pairs = Sequence[tuple[str, str]]


class Side(Protocol):
    """Sessions that keep their history and send all of it with each turn."""

    async def open(self, base_url: str) -> None: ...

    async def close(self) -> None: ...

    async def session(self, pairs: Pairs = ()) -> Any: ...

    async def turn(self, session: Any, text: str) -> str: ...

    def stream(self, session: Any, text: str) -> AsyncIterator[str]: ...

    async def open_tools(self, base_url: str) -> None: ...

    async def close_tools(self) -> None: ...

    async def tool_turn(self, text: str) -> str: ...


ADD_SERVER = str(Path(__file__).with_name("add_server.py"))


class Floor:
    """A list of dicts, a POST and a JSON parse: nothing that a runtime must do besides."""

    async def open(self, base_url: str) -> None:
        self._url = base_url + "/v1/chat/completions"
        connector = aiohttp.TCPConnector(limit=0)
        self._client = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600))

    async def close(self) -> None:
        await self._client.close()

    async def session(self, pairs: Pairs = ()) -> list[dict[str, str]]:
        return [
            {"role": role, "content": text}
            for user, assistant in pairs
            for role, text in (("user", user), ("assistant", assistant))
        ]

    async def turn(self, session: list[dict[str, str]], text: str) -> str:
        session.append({"role": "user", "content": text})
        async with self._client.post(self._url, json={"model": "mock", "messages": session}) as response:
            response.raise_for_status()
            answer: str = (await response.json())["choices"][0]["message"]["content"]
        session.append({"role": "assistant", "content": answer})
        return answer

    async def stream(self, session: list[dict[str, str]], text: str) -> AsyncIterator[str]:
        session.append({"role": "user", "content": text})
        body = {"model": "mock", "stream": True, "messages": session}
        parts = []
        async with self._client.post(self._url, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    delta = choices[0]["delta"].get("content") if choices else None
                    if delta:
                        parts.append(delta)
                        yield delta
        session.append({"role": "assistant", "content": "".join(parts)})

    async def open_tools(self, base_url: str) -> None:
        """The SDK's client on a stdio server, and the tool loop by hand."""
        from mcp import Client, StdioServerParameters

        await self.open(base_url)
        self._stack = AsyncExitStack()
        server = StdioServerParameters(command=sys.executable, args=[ADD_SERVER])
        self._mcp = await self._stack.enter_async_context(Client(server, cache=None))
        listed = (await self._mcp.list_tools()).tools
        self._tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
            for tool in listed
        ]

    async def close_tools(self) -> None:
        await self._stack.aclose()
        await self.close()

    async def tool_turn(self, text: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        while True:
            body = {"model": "mock", "messages": messages, "tools": self._tools}
            async with self._client.post(self._url, json=body) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            if not message.get("tool_calls"):
                answer: str = message["content"]
                return answer
            messages.append(message)
            for call in message["tool_calls"]:
                function = call["function"]
                result = await self._mcp.call_tool(function["name"], json.loads(function["arguments"]))
                content = "".join([getattr(block, "text", "") for block in result.content])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


class Mead:
    """The runtime, in memory, with the OpenAI adapter in the local slot."""

    async def open(self, base_url: str) -> None:
        client = HttpClient(base_url + "/v1", slot="local")
        slot = mead.Slot(OpenAIChat(client), mead.Options(model="mock"))
        self._runtime = mead.Runtime(slots=mead.Slots(local=slot))

    async def close(self) -> None:
        await self._runtime.aclose()

    async def session(self, pairs: Pairs = ()) -> str:
        history = [
            mead.Message(role, text)  # type: ignore[arg-type]  # the two roles
            for user, assistant in pairs
            for role, text in (("user", user), ("assistant", assistant))
        ]
        return await self._runtime.start_session(history=history)

    async def turn(self, session: str, text: str) -> str:
        return (await self._runtime.submit_turn(session, text)).unwrap().text

    async def stream(self, session: str, text: str) -> AsyncIterator[str]:
        async for event in self._runtime.stream_turn(session, text):
            if isinstance(event, mead.Delta):
                yield event.text

    async def open_tools(self, base_url: str) -> None:
        """The runtime with the hub on the same server."""
        client = HttpClient(base_url + "/v1", slot="local")
        slot = mead.Slot(OpenAIChat(client), mead.Options(model="mock"))
        server = McpServerSettings(name="bench", command=sys.executable, args=(ADD_SERVER,), read=("add",))
        hub = mead.McpHub([server])
        hub.start()
        await hub.connection("bench").settled()
        self._runtime = mead.Runtime(slots=mead.Slots(local=slot), hub=hub)

    async def close_tools(self) -> None:
        await self.close()

    async def tool_turn(self, text: str) -> str:
        session = await self._runtime.start_session()
        answer = (await self._runtime.submit_turn(session, text, route="local")).unwrap()
        await self._runtime.stop_session(session)
        return answer.text


SIDES: dict[str, type[Side]] = {"mead": Mead, "floor": Floor}
