"""The event bus: in order, to those who listen, and harmless."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mead import telemetry


def test_a_handler_gets_the_events_it_asked_for_until_it_is_detached() -> None:
    seen: list[telemetry.Event] = []
    detach = telemetry.attach(seen.append, telemetry.TURN)

    telemetry.emit(telemetry.TURN, {"duration": 1.5}, {"status": "ok"})
    telemetry.emit(telemetry.ROUTE, {}, {})
    detach()
    detach()
    telemetry.emit(telemetry.TURN, {}, {})

    assert seen == [telemetry.Event(telemetry.TURN, {"duration": 1.5}, {"status": "ok"})]
    assert not telemetry.listened(telemetry.TURN)


def test_without_a_name_all_events_come() -> None:
    seen: list[str] = []
    detach = telemetry.attach(lambda event: seen.append(event.name))

    for name in telemetry.NAMES:
        telemetry.emit(name, {}, {})
    detach()

    assert seen == list(telemetry.NAMES)


def test_a_handler_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(event: telemetry.Event) -> None:
        raise ValueError("a secret of the conversation")

    detach_broken = telemetry.attach(broken, telemetry.TURN)
    detach = telemetry.attach(lambda event: seen.append(event.name), telemetry.TURN)
    with caplog.at_level(logging.DEBUG):
        telemetry.emit(telemetry.TURN, {}, {})
    detach_broken()
    detach()

    assert seen == [telemetry.TURN]
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3), GeneratorExit()], ids=repr)
def test_whatever_a_handler_raises_the_others_are_called(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def broken(event: telemetry.Event) -> None:
        raise raised

    detach_broken = telemetry.attach(broken, telemetry.TURN)
    detach = telemetry.attach(lambda event: seen.append(event.name), telemetry.TURN)
    telemetry.emit(telemetry.TURN, {}, {})
    detach_broken()
    detach()

    assert seen == [telemetry.TURN]
    assert type(raised).__name__ in caplog.text


def test_a_keyboard_interrupt_of_a_handler_goes_on_up() -> None:
    def interrupted(event: telemetry.Event) -> None:
        raise KeyboardInterrupt

    detach = telemetry.attach(interrupted, telemetry.TURN)
    try:
        with pytest.raises(KeyboardInterrupt):
            telemetry.emit(telemetry.TURN, {}, {})
    finally:
        detach()


def test_the_same_handler_attached_twice_is_called_twice_and_detached_one_by_one() -> None:
    seen: list[str] = []

    def handler(event: telemetry.Event) -> None:
        seen.append(event.name)

    first = telemetry.attach(handler, telemetry.TURN)
    second = telemetry.attach(handler, telemetry.TURN)
    telemetry.emit(telemetry.TURN, {}, {})
    first()
    telemetry.emit(telemetry.TURN, {}, {})
    second()

    assert len(seen) == 3


def test_an_unknown_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"mead\.session\.turn"):
        telemetry.attach(print, "mead.sesion.turn")


def test_every_event_is_in_the_catalogue() -> None:
    text = telemetry.events.__doc__ or ""

    assert all(f"`{name}`" in text for name in telemetry.NAMES)
