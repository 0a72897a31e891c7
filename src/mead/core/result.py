"""`Ok` and `Err`: what every operation of mead that may fail returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NoReturn, TypeAlias, TypeVar

if TYPE_CHECKING:
    from mead.core.reasons import Reason

T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", bound="Reason", covariant=True)


class MeadError(Exception):
    """Raised by `Err.unwrap()` only. `reason` is the value that was not handled."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """Success, with its value."""

    value: T_co

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Err(Generic[R_co]):
    """Failure, with its reason; `cause` is the exception behind it, where there was one."""

    reason: R_co
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def unwrap(self) -> NoReturn:
        """Raises `MeadError` with the reason."""
        raise MeadError(self.reason) from self.cause


Result: TypeAlias = Ok[T_co] | Err[R_co]
