"""A chat service with FastAPI: one runtime for the application, one session a visitor, streamed answers.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_app:app

Without a `mead.toml` it echoes. `curl -X POST localhost:8000/sessions`, then
`curl -N localhost:8000/sessions/ID/turns -d '{"text": "hello"}' -H 'content-type: application/json'`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import mead


class NewTurn(BaseModel):
    text: str
    route: Literal["auto", "local", "cloud"] = "auto"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with mead.Runtime.open() as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/sessions")
async def start_session(request: Request) -> dict[str, str]:
    return {"session_id": await request.app.state.runtime.start_session()}


@app.post("/sessions/{session_id}/turns")
async def submit_turn(session_id: str, turn: NewTurn, request: Request) -> StreamingResponse:
    runtime: mead.Runtime = request.app.state.runtime
    if isinstance(await runtime.history(session_id), mead.Err):
        raise HTTPException(404, "no such session")
    return StreamingResponse(_lines(runtime, session_id, turn), media_type="application/x-ndjson")


async def _lines(runtime: mead.Runtime, session_id: str, turn: NewTurn) -> AsyncIterator[bytes]:
    """The turn's events, one JSON object a line. A client that leaves cancels its turn."""
    async for event in runtime.stream_turn(session_id, turn.text, route=turn.route):
        match event:
            case mead.Delta(text=text):
                yield _line({"delta": text})
            case mead.Finished(result=mead.Ok(value=answer)):
                yield _line({"answer": answer.text, "route": answer.route})
            case mead.Finished(result=mead.Err(reason=reason)):
                yield _line({"error": reason.tag, "detail": reason.detail})


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"
