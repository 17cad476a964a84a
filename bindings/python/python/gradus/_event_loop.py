"""One event loop for all asynchronous functions of a process.

A client of a server belongs to the event loop in which it was first used. So a function that keeps one between its calls, as most do, needs
the same loop in every call.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any


def run(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines at the same time and return their results. After an exception, the others are canceled."""
    future = asyncio.run_coroutine_threadsafe(_gather(coroutines), _loop(os.getpid()))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _gather(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the loop of a process. A forked process needs another, because its parent's thread does not exist there."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"gradus-async-{process}", daemon=True).start()
    return loop
