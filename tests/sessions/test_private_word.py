"""Private content goes to a cloud model only by a person's explicit word, and that is written down (R16)."""

from __future__ import annotations

import mead
from mead.core.options import Options
from mead.core.reasons import PrivateContent
from mead.core.result import Err
from mead.providers.http import HttpClient
from mead.providers.openai_chat import OpenAIChat
from mead.router import Slot, Slots
from mead.testing import FakeServer
from mead.testing.server import Answer

CARD = "my card is 4012 8888 8888 1881"
SAID = b'{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}'


async def test_r16_the_egress_record_says_by_whose_word_private_content_left() -> None:
    async with FakeServer(Answer(body=SAID), Answer(body=SAID)) as server:
        cloud = OpenAIChat(HttpClient(server.url, slot="cloud"))
        async with mead.Runtime(slots=Slots(cloud=Slot(cloud, Options(model="m")))) as runtime:
            session_id = await runtime.start_session()
            refused = await runtime.submit_turn(session_id, CARD, route="cloud")
            await runtime.submit_turn(session_id, CARD, route="cloud", allow_private=True)
            await runtime.submit_turn(session_id, "hello", route="cloud", allow_private=True)
            sent = await runtime.egress(session_id)

    assert isinstance(refused, Err)
    assert isinstance(refused.reason, PrivateContent)
    assert refused.reason.kinds == ("card",)
    assert [record.record.allowed_because for record in sent] == [
        "cloud slot, cloud turn; private content by the turn's word (allow_private)",
        "cloud slot, cloud turn",
    ]
