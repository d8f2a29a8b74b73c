"""The asyncio API. The names are those of `trl_client` itself.

    async with trl_client.aio.connect() as sandbox:
        result = await sandbox.exec("make")
"""

from ._command import Command
from ._process import Process
from ._sandbox import Sandbox, connect
from ._session import Session
from ._terminal import Terminal
from ._watch import Watch

__all__ = ["Command", "Process", "Sandbox", "Session", "Terminal", "Watch", "connect"]
