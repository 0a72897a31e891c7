"""What a client was not shown is put in again in its own conversation only."""

from __future__ import annotations

from mead.core.conversation import encode_exchange, encode_open, encode_user
from mead.core.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import Route
from mead.core.turns import Answer, Cause, Decision
from mead.serve.continuations import MAX_KEPT, Continuations

CALL = ToolUseBlock("c1", "weather", {})


def decision(route: Route) -> Decision:
    causes = (Cause("test", "It is a test."),)
    return Decision(route=route, source="forced", provider="p", model="m", causes=causes, label="shareable")


def handed(hidden: str, route: Route = "local", call: ToolUseBlock = CALL) -> Answer:
    """An answer that asks for the client's tool beside one of the hub's, which has said something."""
    exchange = [
        Message("assistant", (ToolUseBlock("h1", "clock", {}), call)),
        Message("user", (ToolResultBlock("h1", hidden),)),
    ]
    return Answer(
        text="",
        messages=encode_exchange(encode_user("x"), "y"),
        stop_reason="tool_use",
        decision=decision(route),
        client_calls=(call,),
        handed_over=encode_open(exchange),
    )


def back(question: str) -> list[Message]:
    """The client's next request: it was shown its own call only."""
    return [
        Message("user", question),
        Message("assistant", (CALL,)),
        Message("user", (ToolResultBlock("c1", "sun"),)),
    ]


def hidden_in(messages: list[Message]) -> list[str]:
    return [
        block.content
        for message in messages
        for block in message.content
        if isinstance(block, ToolResultBlock) and block.tool_use_id == "h1"
    ]


def test_conversations_with_equal_call_ids_are_not_mixed_up() -> None:
    kept = Continuations()
    kept.remember("ada", [Message("user", "one?")], handed("noon"))
    kept.remember("ada", [Message("user", "two?")], handed("midnight"))

    first, _ = kept.resumed("ada", back("one?"))
    second, _ = kept.resumed("ada", back("two?"))
    other, _ = kept.resumed("ada", back("three?"))

    assert (hidden_in(first), hidden_in(second), hidden_in(other)) == (["noon"], ["midnight"], [])


def test_a_second_round_goes_on_from_the_first() -> None:
    kept = Continuations()
    brought = back("one?")
    kept.remember("ada", brought[:1], handed("noon"))
    kept.remember("ada", brought, handed("later", call=ToolUseBlock("c2", "weather", {})))
    again = [*brought, Message("assistant", (ToolUseBlock("c2", "weather", {}),)), brought[-1]]

    resumed, _ = kept.resumed("ada", again)

    assert hidden_in(resumed) == ["noon", "later"]


def test_s10_another_owner_goes_on_with_nothing() -> None:
    kept = Continuations()
    kept.remember("ada", [Message("user", "one?")], handed("noon"))

    assert kept.resumed("bob", back("one?")) == (back("one?"), False)


def test_r10_another_route_goes_without_and_a_local_one_makes_the_request_local() -> None:
    kept = Continuations()
    kept.remember("ada", [Message("user", "one?")], handed("noon"))

    assert kept.resumed("ada", back("one?"))[1]
    assert kept.resumed("ada", back("one?"), "cloud") == (back("one?"), True), "and is to be refused"


def test_the_oldest_go_where_there_are_too_many() -> None:
    kept = Continuations()
    for number in range(MAX_KEPT + 1):
        kept.remember("ada", [Message("user", f"{number}?")], handed(f"{number}"))

    assert hidden_in(kept.resumed("ada", back("0?"))[0]) == []
    assert hidden_in(kept.resumed("ada", back("1?"))[0]) == ["1"]


def test_an_answer_without_calls_is_not_remembered() -> None:
    kept = Continuations()
    plain = Answer(text="hi", messages=encode_exchange(encode_user("x"), "hi"))
    kept.remember("ada", [Message("user", "one?")], plain)

    assert kept.resumed("ada", [Message("user", (TextBlock("one?"),))])[1] is False
