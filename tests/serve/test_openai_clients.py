"""Other people's clients of the OpenAI-compatible door, as they are: the npm package, and pydantic-ai."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from mead.core.messages import TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import Options
from mead.core.reasons import Transport
from mead.core.result import Err, Ok
from mead.providers.protocol import Embeddings, OnDelta, Reply
from mead.serve import models as listing
from mead.serve import openai as door
from mead.testing import ScriptedProvider, calls
from serve.served import Serving
from support import runtime

ROOT = Path(__file__).parents[2]
NODE = ROOT / "node_modules" / ".bin" / "node"


class Model(ScriptedProvider):
    """Makes embeddings, and breaks a stream off where the script says so."""

    async def converse_stream(
        self, messages: Sequence[Any], tools: Sequence[Any], options: Options, on_delta: OnDelta
    ) -> Any:
        result = await super().converse_stream(messages, tools, options, on_delta)
        if isinstance(result, Ok) and result.value.stop_reason == "max_tokens":
            return Err(Transport(cause="cut"))
        return result

    async def embed(self, texts: Any, options: Options) -> Any:
        return Ok(Embeddings(vectors=((0.5, -1.0),)))


@pytest.fixture(scope="session")
def node() -> str:
    """Node with the npm packages, installed now if they are not there."""
    done = subprocess.run([ROOT / "scripts" / "setup-node"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the npm packages cannot be installed: {done.stderr.strip()[-200:]}")
    return str(NODE)


def test_the_npm_package(serving: Serving, node: str) -> None:
    broken = Reply(content=(TextBlock("Once"),), stop_reason="max_tokens")
    provider = Model("Hi.", ["Go", "od."], calls("weather", city="Oslo"), "It rains.", broken)
    url = serving(runtime(provider), doors=[door.routes, listing.routes])

    script = ROOT / "tests" / "serve" / "openai_npm.mjs"
    done = subprocess.run(
        [node, script, f"{url}/v1"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {
        "plain": "Hi.",
        "usage": 2,
        "route": "local",
        "pieces": ["Go", "od."],
        "streamedUsage": 2,
        "city": "Oslo",
        "afterTools": "It rains.",
        "missing": [True, "model_not_found", "model"],
        "wrong": [True, "invalid_request", "n"],
        "beforeTheBreak": "Once",
        "broken": [True, "transport"],
        "models": ["mead-auto", "mead-local", "mead-cloud"],
        "embedding": [0.5, -1],
    }
    assert provider.requests[3].messages[-1].content == (ToolResultBlock("call_weather", "rain"),)


class City(BaseModel):
    name: str
    people: int


@asynccontextmanager
async def agent(url: str, **more: Any) -> AsyncIterator[Agent[None, Any]]:
    """An agent that asks mead, whose connections are closed at the end."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = OpenAIChatModel("mead-local", provider=OpenAIProvider(openai_client=client))
        yield Agent(model, instructions="Use your tools.", **more)


async def test_an_agent_of_pydantic_ai_uses_its_tools(serving: Serving) -> None:
    both = tuple([ToolUseBlock(f"call_{city}", "weather", {"city": city}) for city in ("Oslo", "Rome")])
    provider = ScriptedProvider(Reply(content=both, stop_reason="tool_use"), "Oslo: rain. Rome: sun.")
    url = serving(runtime(provider), doors=[door.routes, listing.routes])
    asked: list[str] = []

    def weather(city: str) -> str:
        "Tells the weather."
        asked.append(city)
        return {"Oslo": "rain", "Rome": "sun"}[city]

    async with agent(url, tools=[weather]) as talker:
        run = await talker.run("How is the weather?")

    assert run.output == "Oslo: rain. Rome: sun."
    assert sorted(asked) == ["Oslo", "Rome"]
    assert provider.requests[0].options.system == "Use your tools."
    assert provider.requests[1].messages[-1].content == (
        ToolResultBlock("call_Oslo", "rain"),
        ToolResultBlock("call_Rome", "sun"),
    )


async def test_an_agent_of_pydantic_ai_streams(serving: Serving) -> None:
    provider = ScriptedProvider(["It ", "is ", "noon."])
    url = serving(runtime(provider), doors=[door.routes, listing.routes])

    async with agent(url) as talker, talker.run_stream("What time is it?") as run:
        said = [text async for text in run.stream_text(delta=True, debounce_by=None)]
        usage = run.usage

    assert "".join(said) == "It is noon."
    assert usage.output_tokens == 1


async def test_an_agent_of_pydantic_ai_gets_its_output_type(serving: Serving) -> None:
    provider = ScriptedProvider(calls("final_result", name="Oslo", people=700_000))
    url = serving(runtime(provider), doors=[door.routes, listing.routes])

    async with agent(url, output_type=City) as talker:
        run = await talker.run("Which city?")

    assert run.output == City(name="Oslo", people=700_000)
    assert provider.requests[0].options.tool_choice == "required"
