"""The HTTP server as an ASGI application: every door, behind one guard.

    app = make_app(runtime, tokens)          # for uvicorn, hypercorn, or a test client

The application opens the runtime when it starts and closes it when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mead.serve.endpoint import Call, Server, endpoint
from mead.serve.errors import Problem, answer, native_shape
from mead.serve.guard import Guard
from mead.serve.tokens import Tokens
from mead.sessions.runtime import Runtime

Door: TypeAlias = Callable[[Server], Sequence[BaseRoute]]
"""A part of the API: gives its routes."""


def make_app(runtime: Runtime, tokens: Tokens | None, *, owns_runtime: bool = True) -> Starlette:
    """The application over a runtime. Without `tokens` nobody is asked for one: for loopback only.

    With `owns_runtime` false somebody else opens and closes the runtime. Raises `ImportError` where the extra
    `serve` is not installed.
    """
    settings = runtime.settings.serve
    server = Server(runtime, tokens, requests_per_minute=settings.requests_per_minute)
    routes: list[BaseRoute] = [
        Route("/healthz", _healthz),
        Route("/readyz", endpoint(_readyz, scope=None, shape=native_shape)),
    ]
    for door in _doors():
        routes += door(server)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if owns_runtime:
                await stack.enter_async_context(runtime)
            for start in server.started:
                await stack.enter_async_context(start())
            yield
            server.is_stopping = True

    middleware = [
        Middleware(
            Guard,
            hosts=(settings.host, *settings.allowed_hosts),
            origins=settings.allowed_origins,
            max_body_bytes=settings.max_body_bytes,
            body_timeout_s=settings.body_timeout_s,
        )
    ]
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _not_there, Problem: _problem},
    )
    app.state.server = server
    return app


def _doors() -> Sequence[Door]:
    from mead.serve import anthropic, mcp_server, metrics, models, native, openai

    return (
        openai.routes,
        anthropic.routes,
        models.routes,
        native.routes,
        mcp_server.routes,
        metrics.routes,
    )


async def _healthz(request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


async def _readyz(call: Call) -> Response:
    """Whether turns are taken: not while the server stops, nor when its store does not answer."""
    store, is_ready = call.server.runtime.store, not call.server.is_stopping
    if store is not None and is_ready:
        try:
            async with asyncio.timeout(2):
                await store.get_session("local", "-")
        except Exception:
            is_ready = False
    said = {"status": "ready" if is_ready else "not_ready"}
    return Response(msgspec.json.encode(said), 200 if is_ready else 503, media_type="application/json")


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    tag = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    said = {404: "there is no such path", 405: "the path does not take this method"}.get(error.status_code)
    response = answer(Problem(error.status_code, tag, said or error.detail), native_shape)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer(error, native_shape)
