"""What a person says in a turn of a random conversation."""

from __future__ import annotations

from mead.core.messages import ImageBlock
from mead.testing.canaries import Canary
from privacy.models import CARD, Plant
from privacy.plan import Kind

HARD = " Analyse, design and prove it step by step: ```def f(): ...``` compare the complexity."


def question(kind: Kind, plant: Plant) -> tuple[str, list[Canary], list[ImageBlock]]:
    """What a person says, its canaries (the first one stands in the text), and what is attached."""
    canary = plant(f"{kind} text")
    match kind:
        case "hard":
            return f"{canary} please.{HARD}", [canary], []
        case "marked":
            markers = ("private:", "[local]", "Confidential:")
            return f"{markers[canary.number % 3]} {canary} please", [canary], []
        case "pattern":
            return f"my card, {canary}, is {CARD}", [canary], []
        case "word":
            return f"about the project nightjar, {canary}", [canary], []
        case "attached":
            shown = plant("picture")
            return f"what is this, {canary}", [canary, shown], [_picture(shown)]
    return f"{canary} please", [canary], []


def _picture(shown: Canary) -> ImageBlock:
    return ImageBlock("image/png", b"\x89PNG\r\n\x1a\n" + bytes(60) + shown.text.encode())
