"""The conformance suite's fixtures behind mead's own door for MCP: `fixture_server.py PORT`, on 127.0.0.1.

The application is mead's: the guard that looks at Host and Origin, and the door at `/mcp` with both protocol
eras. Only the tools, resources and prompts are the suite's, and nobody is asked for a token.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import uvicorn
from fixtures import fixture_server
from mcp.shared.exceptions import MCPDeprecationWarning
from starlette.routing import BaseRoute, Route

from mead import Runtime, Settings
from mead.serve import app
from mead.serve.endpoint import Server
from mead.serve.mcp_server import PATH, McpDoor


def door(server: Server) -> Sequence[BaseRoute]:
    """mead's door, with other things behind it."""
    made = McpDoor(server, fixture_server)
    server.started.append(made.opened)
    return [Route(PATH, made)]


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # the suite tests what is deprecated, too
    app._doors = lambda: (door,)
    served = app.make_app(Runtime(Settings()), None)
    uvicorn.run(served, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
