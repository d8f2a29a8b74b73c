"""The objects of the wire. Generated from the Go types by `go test ./protocol -update`: do not edit."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Code = Literal[
    "INVALID_REQUEST",
    "UNKNOWN_METHOD",
    "INVALID_PARAMS",
    "REQUEST_TOO_LARGE",
    "AUTH_FAILED",
    "FORBIDDEN",
    "RATE_LIMITED",
    "SESSION_NOT_FOUND",
    "SESSION_EXISTS",
    "SESSION_BUSY",
    "SESSION_TERMINATED",
    "SESSION_LOST",
    "MAX_SESSIONS_REACHED",
    "SHELL_NOT_FOUND",
    "SHELL_NOT_ALLOWED",
    "SHELL_FAILED",
    "WORKING_DIR_NOT_FOUND",
    "EXEC_NOT_FOUND",
    "PROCESS_NOT_FOUND",
    "TERM_NOT_FOUND",
    "STREAM_NOT_FOUND",
    "STDIN_CLOSED",
    "LIMIT_EXCEEDED",
    "NOT_SUPPORTED",
    "SHUTTING_DOWN",
    "INTERNAL_ERROR",
    "SHARE_NOT_FOUND",
    "RECORDING_NOT_FOUND",
    "NODE_UNREACHABLE",
    "DIRECTORY_UNAVAILABLE",
    "OFFSET_MISMATCH",
]

# When a client may send a request again after it has lost the connection on which it waited for the answer. protocol/repeat.go has the rules.
REPEATS: dict[str, Literal["never", "always", "keyed", "end"]] = {
    "session.create": "keyed",
    "session.info": "always",
    "session.list": "always",
    "session.destroy": "always",
    "session.rename": "never",
    "session.update": "never",
    "session.reset": "never",
    "session.touch": "always",
    "session.watch": "always",
    "session.unwatch": "always",
    "session.locate": "always",
    "session.move": "always",
    "exec.run": "keyed",
    "exec.stream": "keyed",
    "exec.wait": "always",
    "exec.input": "never",
    "exec.cancel": "end",
    "exec.attach": "always",
    "exec.list": "always",
    "exec.detach": "always",
    "process.start": "keyed",
    "process.list": "always",
    "process.info": "always",
    "process.logs": "always",
    "process.detach": "always",
    "process.input": "never",
    "process.kill": "end",
    "process.wait": "always",
    "term.open": "keyed",
    "term.input": "never",
    "term.resize": "always",
    "term.close": "always",
    "term.attach": "always",
    "term.detach": "always",
    "term.list": "always",
    "term.snapshot": "always",
    "share.create": "never",
    "share.list": "always",
    "share.revoke": "always",
    "recording.list": "always",
    "recording.info": "always",
    "recording.delete": "never",
    "stream.ack": "always",
    "system.ping": "always",
    "system.drain": "never",
    "system.stats": "always",
    "system.nodes": "always",
    "system.capabilities": "always",
}


class BackgroundEntry(TypedDict):
    pid: int
    command: str


class Capabilities(TypedDict):
    version: str
    shells: list[str]
    default_shell: str
    encodings: list[str]
    subprotocols: list[str]
    methods: list[str]
    features: list[str]
    isolation: Isolation
    limits: dict[str, float]
    session_limits: list[str]
    principal: Who
    session_user: NotRequired[str]
    no_new_privs: NotRequired[bool]
    allow_write: list[str]
    sandbox: NotRequired[str]
    record: NotRequired[Literal["off", "terminals", "execs", "all"]]


class Chunk(TypedDict):
    offset: int
    stream: Literal["stdout", "stderr", "tty"]
    data: str
    encoding: NotRequired[Literal["utf-8", "base64"]]


class CurrentExec(TypedDict):
    id: str
    command: str
    started_at: str


class Cursor(TypedDict):
    col: int
    row: int
    visible: bool


class Destroyed(TypedDict):
    session_id: str
    state: Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]
    reason: Literal["client", "idle", "expired", "shell_exited", "shell_failed", "disconnect", "shutdown", "limit"]


class Drain(TypedDict):
    node: NotRequired[str]
    wait_s: NotRequired[float]
    undo: NotRequired[bool]
    move: NotRequired[bool]


class DrainMoves(TypedDict):
    moved: int
    unmoved: list[Unmoved]


class Drained(TypedDict):
    node: NotRequired[str]
    draining: bool
    active_sessions: int
    moves: NotRequired[DrainMoves]


class Error(TypedDict):
    code: str
    message: str
    details: NotRequired[dict[str, Any]]


class ExecAttach(TypedDict):
    exec_id: str
    offset: NotRequired[int]
    on_slow: NotRequired[Literal["block", "skip"]]
    window_bytes: NotRequired[int]


class ExecCancel(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    exec_id: NotRequired[str]
    request_id: NotRequired[str | float]
    signal: NotRequired[str]
    kill_grace_s: NotRequired[float]


class ExecCancelled(TypedDict):
    exec_id: NotRequired[str]
    cancelled: bool
    signalled: NotRequired[int]
    reason: NotRequired[Literal["ended", "ignored", "trapped"]]


class ExecDetach(TypedDict):
    exec_id: str


class ExecEntry(TypedDict):
    exec_id: str
    stream_id: str
    command: str
    state: Literal["queued", "running", "ended"]
    queued_at: str
    started_at: NotRequired[str]
    exit: NotRequired[ExecExit]
    recording_id: NotRequired[str]


class ExecExit(TypedDict):
    exec_id: str
    session_id: str
    stream_id: str
    stdout_bytes: int
    stderr_bytes: int
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    duration_ms: int
    queued_ms: int
    timed_out: bool
    timeout_kind: NotRequired[Literal["hard", "no_output"]]
    timeout_s: NotRequired[float]
    cancelled: bool
    linger_ms: int
    shell_restored: bool
    state_lost: NotRequired[list[str]]
    usage: NotRequired[Usage]
    oom_killed: NotRequired[bool]
    limit_hit: NotRequired[Literal["memory_bytes", "pids", "file_size_bytes"]]
    kill_failed: NotRequired[bool]
    working_dir: str
    background: NotRequired[list[int]]
    error: NotRequired[Error]


class ExecInput(TypedDict):
    exec_id: str
    data: NotRequired[str]
    encoding: NotRequired[Literal["utf-8", "base64"]]
    eof: NotRequired[bool]
    offset: NotRequired[int]


class ExecResult(TypedDict):
    exec_id: str
    session_id: str
    stream_id: str
    stdout_bytes: int
    stderr_bytes: int
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    duration_ms: int
    queued_ms: int
    timed_out: bool
    timeout_kind: NotRequired[Literal["hard", "no_output"]]
    timeout_s: NotRequired[float]
    cancelled: bool
    linger_ms: int
    shell_restored: bool
    state_lost: NotRequired[list[str]]
    usage: NotRequired[Usage]
    oom_killed: NotRequired[bool]
    limit_hit: NotRequired[Literal["memory_bytes", "pids", "file_size_bytes"]]
    kill_failed: NotRequired[bool]
    working_dir: str
    background: NotRequired[list[int]]
    error: NotRequired[Error]
    stdout: str
    stderr: str
    stdout_encoding: Literal["utf-8", "base64"]
    stderr_encoding: Literal["utf-8", "base64"]
    truncated: bool
    omitted: NotRequired[OmittedStreams]
    running: NotRequired[bool]
    next_offset: NotRequired[int]


class ExecRun(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    command: str
    timeout_s: NotRequired[float]
    no_output_timeout_s: NotRequired[float]
    stdin: NotRequired[str]
    stdin_encoding: NotRequired[Literal["utf-8", "base64"]]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    max_output_bytes: NotRequired[int]
    when_busy: NotRequired[Literal["queue", "reject"]]
    kill_grace_s: NotRequired[float]
    clean: NotRequired[bool]
    request_key: NotRequired[str]
    yield_ms: NotRequired[float]
    record: NotRequired[bool]


class ExecStarted(TypedDict):
    session_id: str
    exec_id: str
    stream_id: str
    command: str
    at: str


class ExecStream(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    command: str
    timeout_s: NotRequired[float]
    no_output_timeout_s: NotRequired[float]
    stdin: NotRequired[str]
    stdin_encoding: NotRequired[Literal["utf-8", "base64"]]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    when_busy: NotRequired[Literal["queue", "reject"]]
    kill_grace_s: NotRequired[float]
    request_key: NotRequired[str]
    interactive_stdin: NotRequired[bool]
    on_slow: NotRequired[Literal["block", "skip"]]
    window_bytes: NotRequired[int]
    record: NotRequired[bool]


class ExecWait(TypedDict):
    exec_id: str
    offset: NotRequired[int]
    timeout_s: NotRequired[float]
    yield_ms: NotRequired[float]


class Execs(TypedDict):
    execs: list[ExecEntry]


class FirstTerminal(TypedDict):
    cols: int
    rows: int
    command: NotRequired[str]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    on_slow: NotRequired[Literal["block", "skip"]]
    window_bytes: NotRequired[int]
    record: NotRequired[bool]

GapRange = TypedDict(
    "GapRange",
    {
        "from": int,
        "to": int,
    },
)


class InputRefused(TypedDict):
    stream_no: int
    offset: int
    error: Error


class InputTaken(TypedDict):
    input_offset: int


class Isolation(TypedDict):
    tier: str
    why: str
    tiers: list[IsolationTier]


class IsolationTier(TypedDict):
    tier: str
    available: bool
    in_force: bool
    why: str


class LastExec(TypedDict):
    exec_id: str
    command: str
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    timed_out: NotRequired[bool]
    cancelled: NotRequired[bool]
    duration_ms: int
    ended_at: str


class Limits(TypedDict):
    memory_bytes: NotRequired[int]
    pids: NotRequired[int]
    cpu: NotRequired[float]
    file_size_bytes: NotRequired[int]
    open_files: NotRequired[int]


class Located(TypedDict):
    session_id: str
    node: str
    url: NotRequired[str]


class Logs(TypedDict):
    stream_id: NotRequired[str]
    stream_no: NotRequired[int]
    chunks: list[Chunk]
    next_offset: int
    eof: bool
    gap: NotRequired[GapRange]
    input_offset: NotRequired[int]


class Node(TypedDict):
    node: str
    epoch: str
    url: NotRequired[str]
    zone: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    version: str
    active_sessions: int
    max_sessions: int
    load: NotRequired[float]
    draining: NotRequired[bool]
    self: NotRequired[bool]
    unreachable: NotRequired[str]


class Nodes(TypedDict):
    nodes: list[Node]
    degraded: NotRequired[bool]


class Omitted(TypedDict):
    at: int
    bytes: int


class OmittedStreams(TypedDict):
    stdout: NotRequired[Omitted]
    stderr: NotRequired[Omitted]


class Output(TypedDict):
    stream_id: str
    exec_id: NotRequired[str]
    process_id: NotRequired[str]
    term_id: NotRequired[str]
    offset: int
    stream: Literal["stdout", "stderr", "tty"]
    replay: NotRequired[bool]
    snapshot: NotRequired[bool]
    data: str
    encoding: NotRequired[Literal["utf-8", "base64"]]


class Pong(TypedDict):
    uptime_s: int
    version: str
    time: str
    epoch: str
    node: NotRequired[str]
    degraded: NotRequired[bool]


class ProcessInfo(TypedDict):
    process_id: str
    session_id: str
    stream_id: str
    pid: int
    name: NotRequired[str]
    command: str
    state: Literal["running", "exited"]
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    timed_out: NotRequired[bool]
    started_at: str
    ended_at: NotRequired[str]
    output_bytes: int
    ports: NotRequired[list[int]]
    usage: NotRequired[Usage]
    state_lost: NotRequired[list[str]]


class ProcessInput(TypedDict):
    process_id: str
    data: NotRequired[str]
    encoding: NotRequired[Literal["utf-8", "base64"]]
    eof: NotRequired[bool]
    offset: NotRequired[int]


class ProcessKill(TypedDict):
    process_id: str
    signal: NotRequired[str]
    kill_grace_s: NotRequired[float]


class ProcessLogs(TypedDict):
    process_id: str
    offset: NotRequired[int]
    max_bytes: NotRequired[int]
    follow: NotRequired[bool]
    on_slow: NotRequired[Literal["block", "skip"]]
    window_bytes: NotRequired[int]


class ProcessRef(TypedDict):
    process_id: str


class ProcessStart(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    command: str
    name: NotRequired[str]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    timeout_s: NotRequired[float]
    stdin: NotRequired[Literal["none", "open"]]
    request_key: NotRequired[str]


class ProcessStarted(TypedDict):
    process_id: str
    pid: int
    stream_id: str
    state_lost: NotRequired[list[str]]


class ProcessWait(TypedDict):
    process_id: str
    until: Until
    timeout_s: NotRequired[float]


class Processes(TypedDict):
    processes: list[ProcessInfo]
    background: NotRequired[list[int]]
    background_commands: NotRequired[list[BackgroundEntry]]


class Recording(TypedDict):
    recording_id: str
    session_id: str
    session: NotRequired[str]
    term_id: NotRequired[str]
    exec_id: NotRequired[str]
    command: NotRequired[str]
    owner: str
    state: Literal["recording", "ended"]
    reason: NotRequired[Literal["exit", "full", "no_room", "failed", "deleted", "lost"]]
    exit_code: NotRequired[int]
    cols: int
    rows: int
    started_at: str
    duration_ms: int
    size_bytes: int
    output_bytes: int
    demanded: NotRequired[bool]


class RecordingList(TypedDict):
    session_id: NotRequired[str]
    all: NotRequired[bool]


class RecordingRef(TypedDict):
    recording_id: str


class Recordings(TypedDict):
    recordings: list[Recording]
    partial: NotRequired[list[str]]


class ServerShutdown(TypedDict):
    in_s: float


class Session(TypedDict):
    session_id: str
    epoch: str
    node: NotRequired[str]
    name: NotRequired[str]
    shell: str
    working_dir: str
    state: Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]
    created_at: str
    pid: NotRequired[int]
    limits: Limits
    labels: NotRequired[dict[str, str]]
    record: Literal["off", "terminals", "execs", "all"]
    where: NotRequired[dict[str, str]]


class SessionCreate(TypedDict):
    shell: NotRequired[str]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    name: NotRequired[str]
    timeout_s: NotRequired[float]
    idle_timeout_s: NotRequired[float]
    on_disconnect: NotRequired[Literal["keep", "destroy"]]
    on_shell_exit: NotRequired[Literal["restore", "terminate"]]
    limits: NotRequired[Limits]
    labels: NotRequired[dict[str, str]]
    if_exists: NotRequired[Literal["error", "return"]]
    record: NotRequired[Literal["off", "terminals", "execs", "all"]]
    request_key: NotRequired[str]
    node: NotRequired[str]
    where: NotRequired[dict[str, str]]
    terminal: NotRequired[FirstTerminal]


class SessionCreated(TypedDict):
    session_id: str
    epoch: str
    node: NotRequired[str]
    name: NotRequired[str]
    shell: str
    working_dir: str
    state: Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]
    created_at: str
    pid: NotRequired[int]
    limits: Limits
    labels: NotRequired[dict[str, str]]
    record: Literal["off", "terminals", "execs", "all"]
    where: NotRequired[dict[str, str]]
    terminal: NotRequired[TermOpened]


class SessionDestroy(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    force: NotRequired[bool]
    grace_s: NotRequired[float]


class SessionExpiring(TypedDict):
    session_id: str
    in_s: float


class SessionInfo(TypedDict):
    session_id: str
    epoch: str
    node: NotRequired[str]
    name: NotRequired[str]
    shell: str
    working_dir: str
    state: Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]
    created_at: str
    pid: NotRequired[int]
    limits: Limits
    labels: NotRequired[dict[str, str]]
    record: Literal["off", "terminals", "execs", "all"]
    where: NotRequired[dict[str, str]]
    last_active_at: str
    env_count: int
    commands_run: int
    timeout_s: NotRequired[float]
    idle_timeout_s: NotRequired[float]
    current_exec: NotRequired[CurrentExec]
    queue_length: int
    processes: int
    terminals: int
    in_terminals: NotRequired[list[TermRunning]]
    recording: int
    background: NotRequired[list[int]]
    owner: NotRequired[str]
    memory_bytes: NotRequired[int]
    last_exec: NotRequired[LastExec]
    terminated_at: NotRequired[str]
    reason: NotRequired[Literal["client", "idle", "expired", "shell_exited", "shell_failed", "disconnect", "shutdown", "limit"]]


class SessionList(TypedDict):
    state: NotRequired[Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]]
    label: NotRequired[str]
    all: NotRequired[bool]
    owner: NotRequired[str]


class SessionMove(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    node: str


class SessionMoved(TypedDict):
    session_id: str
    node: str
    state_lost: NotRequired[list[str]]


class SessionRef(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]


class SessionRename(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    name: str

SessionState = TypedDict(
    "SessionState",
    {
        "session_id": str,
        "from": Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"],
        "to": Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"],
        "at": str,
        "reason": NotRequired[Literal["client", "idle", "expired", "shell_exited", "shell_failed", "disconnect", "shutdown", "limit"]],
    },
)


class SessionUpdate(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    timeout_s: NotRequired[float]
    idle_timeout_s: NotRequired[float]


class Sessions(TypedDict):
    sessions: list[SessionInfo]
    partial: NotRequired[list[str]]


class Share(TypedDict):
    share_id: str
    session_id: str
    term_id: NotRequired[str]
    mode: Literal["control", "view"]
    name: NotRequired[str]
    created_at: str
    expires_at: str
    clients: int


class ShareCreate(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    term_id: NotRequired[str]
    mode: NotRequired[Literal["control", "view"]]
    name: NotRequired[str]
    expires_in_s: NotRequired[float]


class ShareCreated(TypedDict):
    share_id: str
    session_id: str
    term_id: NotRequired[str]
    mode: Literal["control", "view"]
    name: NotRequired[str]
    created_at: str
    expires_at: str
    clients: int
    token: str
    path: str


class ShareRef(TypedDict):
    share_id: str


class Shares(TypedDict):
    shares: list[Share]


class Stats(TypedDict):
    active_sessions: int
    draining: bool
    by_state: dict[str, int]
    max_sessions: int
    total_commands_run: int
    running: int
    queued: int
    processes: int
    terminals: int
    warm_shells: int
    uptime_s: int
    memory_rss_bytes: int
    partial: NotRequired[list[str]]
    moves: NotRequired[DrainMoves]


class StreamAck(TypedDict):
    stream_id: str
    offset: int

StreamGap = TypedDict(
    "StreamGap",
    {
        "stream_id": str,
        "from": int,
        "to": int,
    },
)


class StreamOpened(TypedDict):
    exec_id: NotRequired[str]
    process_id: NotRequired[str]
    stream_id: str
    stream_no: NotRequired[int]
    offset: int
    input_offset: NotRequired[int]
    recording_id: NotRequired[str]


class StreamStarted(TypedDict):
    stream_id: str
    stream_no: int
    exec_id: NotRequired[str]


class SystemStats(TypedDict):
    node: NotRequired[str]


class TermAttach(TypedDict):
    term_id: str
    offset: NotRequired[int]
    mode: NotRequired[Literal["control", "view"]]
    claim: NotRequired[int]
    cols: NotRequired[int]
    rows: NotRequired[int]
    snapshot: NotRequired[bool]
    history: NotRequired[bool]
    on_slow: NotRequired[Literal["block", "skip"]]
    window_bytes: NotRequired[int]


class TermAttached(TypedDict):
    term_id: str
    stream_id: str
    stream_no: NotRequired[int]
    offset: int
    mode: Literal["control", "view"]
    cols: int
    rows: int
    state: Literal["running", "exited"]
    viewer_id: str
    claim: NotRequired[int]
    input_offset: NotRequired[int]
    recording_id: NotRequired[str]


class TermClose(TypedDict):
    term_id: str
    kill_grace_s: NotRequired[float]


class TermCommand(TypedDict):
    term_id: str
    stream_id: str
    command: NotRequired[str]
    exit_code: NotRequired[int]
    duration_ms: NotRequired[int]
    offset: int
    end_offset: int


class TermControl(TypedDict):
    term_id: str
    stream_id: str
    mode: Literal["control", "view"]
    by: NotRequired[TermViewer]


class TermInfo(TypedDict):
    term_id: str
    session_id: str
    stream_id: str
    pid: int
    state: Literal["running", "exited"]
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    cols: int
    rows: int
    command: str
    viewers: int
    started_at: str
    ended_at: NotRequired[str]
    output_bytes: int
    recording_id: NotRequired[str]
    state_lost: NotRequired[list[str]]
    attached: list[TermViewer]


class TermInput(TypedDict):
    term_id: str
    data: str
    encoding: NotRequired[Literal["utf-8", "base64"]]
    offset: NotRequired[int]


class TermOpen(TypedDict):
    session_id: NotRequired[str]
    session: NotRequired[str]
    cols: int
    rows: int
    command: NotRequired[str]
    env: NotRequired[dict[str, str | None]]
    working_dir: NotRequired[str]
    on_slow: NotRequired[Literal["block", "skip"]]
    request_key: NotRequired[str]
    window_bytes: NotRequired[int]
    record: NotRequired[bool]


class TermOpened(TypedDict):
    term_id: str
    session_id: str
    stream_id: str
    stream_no: NotRequired[int]
    pid: int
    viewer_id: str
    claim: int
    input_offset: NotRequired[int]
    recording_id: NotRequired[str]
    state_lost: NotRequired[list[str]]


class TermRef(TypedDict):
    term_id: str


class TermResize(TypedDict):
    term_id: str
    cols: int
    rows: int


class TermResized(TypedDict):
    term_id: str
    cols: int
    rows: int


class TermRunning(TypedDict):
    term_id: str
    command: str
    started_at: NotRequired[str]


class TermSnapshot(TypedDict):
    term_id: str
    cols: int
    rows: int
    lines: list[str]
    cursor: Cursor
    alternate: bool
    title: NotRequired[str]
    offset: int
    state: Literal["running", "exited"]
    skipped_bytes: NotRequired[int]


class TermViewer(TypedDict):
    viewer_id: str
    subject: str
    mode: Literal["control", "view"]
    since: str
    cols: NotRequired[int]
    rows: NotRequired[int]
    via: NotRequired[str]


class TermViewers(TypedDict):
    term_id: str
    session_id: str
    stream_id: str
    viewers: int
    attached: list[TermViewer]


class Terminals(TypedDict):
    terminals: list[TermInfo]


class Unmoved(TypedDict):
    session_id: str
    reason: Literal["client", "idle", "expired", "shell_exited", "shell_failed", "disconnect", "shutdown", "limit"]
    message: NotRequired[str]


class Until(TypedDict):
    exit: NotRequired[bool]
    port: NotRequired[int]
    host: NotRequired[str]
    output: NotRequired[str]
    http: NotRequired[str]


class Usage(TypedDict):
    cpu_ms: float
    max_rss_bytes: NotRequired[int]
    memory_peak_bytes: NotRequired[int]


class WaitResult(TypedDict):
    met: bool
    exit_code: NotRequired[int]
    signal: NotRequired[str]
    match: NotRequired[str]
    tail: NotRequired[str]


class Who(TypedDict):
    subject: str
    role: str
    share: NotRequired[Share]
