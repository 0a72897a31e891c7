"""The command line. Each command is a file of this folder, loaded when it is used.

Exit status: 0 ok, 1 the turn failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import click

_COMMANDS = {
    "ask": "Ask one question; the answer goes to standard output.",
    "audit": "Show what was done to sessions, and check that nobody changed the record of it.",
    "chat": "Talk with the model.",
    "doctor": "Check the configuration and each model, and say what to do.",
    "egress": "Show what left this machine, where it went, and why it might.",
    "eval": "Measure how well the router decides. No model is called.",
    "explain": "Say where a turn would go and why, without sending anything.",
    "mcp": "Look at the MCP servers, approve their changes, log in to them.",
    "mcp-server": "Offer sessions to an MCP client that starts this command.",
    "model": "Install the embedded model.",
    "serve": "Serve sessions and models over HTTP, for OpenAI and Anthropic clients too.",
    "sessions": "List, show, continue, fork and delete earlier conversations.",
    "token": "Make, list and revoke the tokens of `mead serve`.",
    "tools": "List the tools of the MCP servers, and whether a turn sees them.",
    "usage": "Show how many tokens the calls took, and what they cost.",
}


class _Commands(click.Group):
    """The commands by name. Their help is known without loading them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"mead.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration file (else $MEAD_CONFIG, ./mead.toml, or the one in your configuration folder).",
)
@click.version_option(package_name="mead-runtime", prog_name="mead")
@click.pass_context
def app(ctx: click.Context, config: Path | None) -> None:
    """Talk to a local or a cloud model. What is local stays local."""
    ctx.obj = config


def main() -> None:
    """The program `mead`."""
    from mead.cli._terminal import prepare_streams

    prepare_streams()
    app(prog_name="mead")
