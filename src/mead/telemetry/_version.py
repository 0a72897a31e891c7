"""The version that telemetry names."""

from importlib.metadata import version

VERSION = version("mead-runtime")
