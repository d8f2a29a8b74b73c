"""Client for trl: persistent shells, commands, processes and terminals on a gateway.

    import trl_client

    with trl_client.connect() as sandbox:
        result = sandbox.exec("cd /tmp && make")
        print(result.exit_code, result.stdout)

This is the blocking API; `trl_client.aio` has the same names for asyncio.
"""

from . import aio, errors, events
from ._command import PIPE
from ._results import ExecResult, LogMatch, Logs, ProcessExit
from ._sync import Command, Process, Sandbox, Session, Terminal, Watch, connect
from ._wire import Limits, SessionInfo, TermSnapshot
from .errors import *  # noqa: F403
from .events import *  # noqa: F403

__all__ = [
    *errors.__all__,
    *events.__all__,
    "PIPE",
    "Command",
    "ExecResult",
    "Limits",
    "LogMatch",
    "Logs",
    "Process",
    "ProcessExit",
    "Sandbox",
    "Session",
    "SessionInfo",
    "TermSnapshot",
    "Terminal",
    "Watch",
    "aio",
    "connect",
]
