"""What a function returns whose result is awaited, or used as a context manager without an await before it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, AsyncContextManager, Coroutine, Generator, Generic, TypeVar

T = TypeVar("T", bound=AsyncContextManager[Any])


class Opening(Generic[T]):
    """`x = await f()` and `async with f() as x` both work."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._value: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._work.__await__()

    async def __aenter__(self) -> T:
        self._value = await self._work
        await self._value.__aenter__()
        return self._value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._value is not None
        await self._value.__aexit__(kind, error, trace)
