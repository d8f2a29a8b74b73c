// The objects of the wire. Generated from the Go types by `go test ./protocol -update`: do not edit.

export interface BackgroundEntry {
  /** process id */
  pid: number;
  /** the process's arguments, separated by spaces; the first 1 KiB */
  command: string;
}

export interface Capabilities {
  /** the server's version */
  version: string;
  /** paths that session.create accepts */
  shells: string[];
  /** the one used when none is named */
  default_shell: string;
  /** encodings of data */
  encodings: string[];
  /** subprotocols of the WebSocket */
  subprotocols: string[];
  /** the methods that the server knows */
  methods: string[];
  /** what the server offers besides the methods: `rpc` is [requests over HTTP](#over-http), `mcp` is tools for agents at `/mcp` */
  features: string[];
  /** how processes are contained */
  isolation: Isolation;
  /** the server's bounds by name; the end of the name is the unit */
  limits: Record<string, number>;
  /** the limits that session.create may set here */
  session_limits: string[];
  /** who this connection is */
  principal: Who;
  /** the user of the sessions if it is not the server's own: a name, a number, or a range from which each session has its own */
  session_user?: string;
  /** nothing in a session gets privileges that its user does not have: no sudo */
  no_new_privs?: boolean;
  /** the directories below which sessions may write, and nowhere else; absent: wherever their user may */
  allow_write: string[];
  /** the sandbox around keeper, gateway and all sessions: `bwrap`; absent: none */
  sandbox?: string;
  /** what the server's policy records in every session; absent: the server cannot record */
  record?: "off" | "terminals" | "execs" | "all";
}

export interface Chunk {
  /** bytes of the stream before this one, stdout and stderr together in the order in which the server read them */
  offset: number;
  /** which output it was written to */
  stream: "stdout" | "stderr" | "tty";
  /** bytes, as text in `encoding` */
  data: string;
  /** base64 if the bytes are not valid UTF-8; absent: utf-8 */
  encoding?: "utf-8" | "base64";
}

export interface CurrentExec {
  /** the command's exec_id */
  id: string;
  /** the first 4 KiB of the command as it was sent */
  command: string;
  /** when it began */
  started_at: string;
}

export interface Cursor {
  /** column, from 0 */
  col: number;
  /** line, from 0 */
  row: number;
  /** the cursor is shown */
  visible: boolean;
}

export interface Destroyed {
  /** the session's id; opaque */
  session_id: string;
  /** the session's state */
  state: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** why the session ended */
  reason: "client" | "idle" | "expired" | "shell_exited" | "shell_failed" | "disconnect" | "shutdown" | "limit";
}

export interface Drain {
  /** the name of the node of a cluster to drain (the one that gets the request) */
  node?: string;
  /** the server ends after this time, even if sessions still live (as long as it takes) */
  wait_s?: number;
  /** undo a drain (false) */
  undo?: boolean;
  /** the node moves its idle sessions to other nodes of the cluster, and others when they become idle; a later drain without it changes nothing of that, and an undo ends it (false) */
  move?: boolean;
}

export interface DrainMoves {
  /** how many sessions it has moved */
  moved: number;
  /** sessions that it could not move yet, 100 of each node at most; never null */
  unmoved: Unmoved[];
}

export interface Drained {
  /** the name of the node; absent if there is only one node */
  node?: string;
  /** new sessions are refused */
  draining: boolean;
  /** sessions that have not ended */
  active_sessions: number;
  /** how far a drain is that moves sessions; for admins; absent if none does */
  moves?: DrainMoves;
}

export interface Error {
  /** the error */
  code: string;
  /** for people */
  message: string;
  /** more data, depending on the code */
  details?: Record<string, unknown>;
}

export interface ExecAttach {
  /** the command's id; opaque */
  exec_id: string;
  /** where in the stream to begin (0) */
  offset?: number;
  /** if the client is slower than the output: slow the command down, or skip output with a stream.gap (block for exec.stream, else skip) */
  on_slow?: "block" | "skip";
  /** send at most this many bytes beyond those that stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
}

export interface ExecCancel {
  /** cancel the running command of this session */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** cancel this command */
  exec_id?: string;
  /** the id of an exec.run or exec.stream sent on this connection, as it was written there */
  request_id?: string | number;
  /** send only this signal, written with or without SIG, in any case: see [Signals](#signals) (TERM, grace, KILL) */
  signal?: string;
  /** time between TERM and KILL (5) */
  kill_grace_s?: number;
}

export interface ExecCancelled {
  /** the command's id; opaque */
  exec_id?: string;
  /** something was cancelled; with a signal, a process got it */
  cancelled: boolean;
  /** how many processes got the signal, including the shell if it did; absent without a signal */
  signalled?: number;
  /** why no process got the signal: the command had `ended`; or the shell itself was working, and the signal has no effect on it (`ignored`) or trl cannot stop it because it has a trap for INT (`trapped`) */
  reason?: "ended" | "ignored" | "trapped";
}

export interface ExecDetach {
  /** the command's id; opaque */
  exec_id: string;
}

export interface ExecEntry {
  /** the command's id; opaque */
  exec_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the first 4 KiB of the command as it was sent */
  command: string;
  /** whether it waits for its turn, runs, or has ended */
  state: "queued" | "running" | "ended";
  /** when the request came */
  queued_at: string;
  /** when it began */
  started_at?: string;
  /** how it ended */
  exit?: ExecExit;
  /** the recording of the command; absent if there is none */
  recording_id?: string;
}

export interface ExecExit {
  /** the command's id; opaque */
  exec_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** how many bytes the command wrote, whether returned or not */
  stdout_bytes: number;
  /** how many bytes the command wrote, whether returned or not */
  stderr_bytes: number;
  /** 128+N if signal N ended it; absent while it runs and if it is unknown */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** from start to end */
  duration_ms: number;
  /** time for which it waited for its turn */
  queued_ms: number;
  /** a timeout ended it */
  timed_out: boolean;
  /** which timeout */
  timeout_kind?: "hard" | "no_output";
  /** the time limit that was in force, after it was lowered to the server's; absent if none */
  timeout_s?: number;
  /** a cancel ended it */
  cancelled: boolean;
  /** time for which the answer waited for late output after the end, at most 100 */
  linger_ms: number;
  /** the command ended the shell, and its state was restored in another one */
  shell_restored: boolean;
  /** the parts of the state after the last answered command that are lost: variables, functions, aliases, options (with traps and the umask), working_dir, or the name of an option; absent if none are */
  state_lost?: string[];
  /** what the session's processes used while it ran, if known */
  usage?: Usage;
  /** the memory limit killed it, or another process of the session while it ran */
  oom_killed?: boolean;
  /** the limit that it, or another process of the session while it ran, reached; absent if none is known */
  limit_hit?: "memory_bytes" | "pids" | "file_size_bytes";
  /** a process of it survived KILL; the session is not IDLE */
  kill_failed?: boolean;
  /** the shell's working directory afterwards */
  working_dir: string;
  /** process ids that the command left running */
  background?: number[];
  /** why the result is unknown; never together with exit code 0 */
  error?: Error;
}

export interface ExecInput {
  /** the command's id; opaque */
  exec_id: string;
  /** bytes, as text in `encoding` */
  data?: string;
  /** how `data` is written (utf-8) */
  encoding?: "utf-8" | "base64";
  /** close the standard input after `data` (false) */
  eof?: boolean;
  /** where in the input `data` begins: the number of bytes of input before it, or OFFSET_MISMATCH. Send it again with the same offset if its answer was lost (after the input so far) */
  offset?: number;
}

export interface ExecResult {
  /** the command's id; opaque */
  exec_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** how many bytes the command wrote, whether returned or not */
  stdout_bytes: number;
  /** how many bytes the command wrote, whether returned or not */
  stderr_bytes: number;
  /** 128+N if signal N ended it; absent while it runs and if it is unknown */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** from start to end */
  duration_ms: number;
  /** time for which it waited for its turn */
  queued_ms: number;
  /** a timeout ended it */
  timed_out: boolean;
  /** which timeout */
  timeout_kind?: "hard" | "no_output";
  /** the time limit that was in force, after it was lowered to the server's; absent if none */
  timeout_s?: number;
  /** a cancel ended it */
  cancelled: boolean;
  /** time for which the answer waited for late output after the end, at most 100 */
  linger_ms: number;
  /** the command ended the shell, and its state was restored in another one */
  shell_restored: boolean;
  /** the parts of the state after the last answered command that are lost: variables, functions, aliases, options (with traps and the umask), working_dir, or the name of an option; absent if none are */
  state_lost?: string[];
  /** what the session's processes used while it ran, if known */
  usage?: Usage;
  /** the memory limit killed it, or another process of the session while it ran */
  oom_killed?: boolean;
  /** the limit that it, or another process of the session while it ran, reached; absent if none is known */
  limit_hit?: "memory_bytes" | "pids" | "file_size_bytes";
  /** a process of it survived KILL; the session is not IDLE */
  kill_failed?: boolean;
  /** the shell's working directory afterwards */
  working_dir: string;
  /** process ids that the command left running */
  background?: number[];
  /** why the result is unknown; never together with exit code 0 */
  error?: Error;
  /** the text of the standard output */
  stdout: string;
  /** the text of the standard error */
  stderr: string;
  /** how `stdout` is written: base64 if the bytes are not valid UTF-8 */
  stdout_encoding: "utf-8" | "base64";
  /** how `stderr` is written: base64 if the bytes are not valid UTF-8 */
  stderr_encoding: "utf-8" | "base64";
  /** some output was omitted */
  truncated: boolean;
  /** where and how much is missing; absent if nothing is */
  omitted?: OmittedStreams;
  /** the command still runs: the answer came before the end */
  running?: boolean;
  /** where to continue */
  next_offset?: number;
}

export interface ExecRun {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** shell text without NUL, at most 1 MiB; an empty command does nothing */
  command: string;
  /** time limit; 0: none (the session's) */
  timeout_s?: number;
  /** ends the command when it has written nothing for this long; 0: never (0) */
  no_output_timeout_s?: number;
  /** bytes for the command's standard input, then EOF (none: /dev/null) */
  stdin?: string;
  /** how `stdin` is written (utf-8) */
  stdin_encoding?: "utf-8" | "base64";
  /** variables for this command only; null unsets */
  env?: Record<string, string | null>;
  /** absolute; for this command only (the shell's) */
  working_dir?: string;
  /** the most that is returned of each stream; beginning and end are kept (1 MiB) */
  max_output_bytes?: number;
  /** while another command runs: wait for the turn (at most 64 commands wait), or SESSION_BUSY (queue) */
  when_busy?: "queue" | "reject";
  /** time between TERM and KILL (5) */
  kill_grace_s?: number;
  /** return text as a terminal would have shown it: without escape sequences, with carriage returns applied (false) */
  clean?: boolean;
  /** a retry with the same key within 10 minutes gets the first request's result, or joins it, and does nothing twice, even if the gateway was killed or upgraded in between; other params with the same key get INVALID_PARAMS */
  request_key?: string;
  /** answer after this time even if the command still runs, with `running` and `next_offset` (only at the end) */
  yield_ms?: number;
  /** record this one, even if the session does not (false) */
  record?: boolean;
}

export interface ExecStarted {
  /** the session's id; opaque */
  session_id: string;
  /** the command's id; opaque */
  exec_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the first 4 KiB of the command as it was sent */
  command: string;
  /** when it happened */
  at: string;
}

export interface ExecStream {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** shell text without NUL, at most 1 MiB; an empty command does nothing */
  command: string;
  /** time limit; 0: none (the session's) */
  timeout_s?: number;
  /** ends the command when it has written nothing for this long; 0: never (0) */
  no_output_timeout_s?: number;
  /** bytes for the command's standard input, then EOF (none: /dev/null) */
  stdin?: string;
  /** how `stdin` is written (utf-8) */
  stdin_encoding?: "utf-8" | "base64";
  /** variables for this command only; null unsets */
  env?: Record<string, string | null>;
  /** absolute; for this command only (the shell's) */
  working_dir?: string;
  /** while another command runs: wait for the turn (at most 64 commands wait), or SESSION_BUSY (queue) */
  when_busy?: "queue" | "reject";
  /** time between TERM and KILL (5) */
  kill_grace_s?: number;
  /** a retry with the same key within 10 minutes gets the first request's result, or joins it, and does nothing twice, even if the gateway was killed or upgraded in between; other params with the same key get INVALID_PARAMS */
  request_key?: string;
  /** keep the standard input open for exec.input (false) */
  interactive_stdin?: boolean;
  /** if the client is slower than the output: slow the command down, or skip output with a stream.gap (block for exec.stream, else skip) */
  on_slow?: "block" | "skip";
  /** send at most this many bytes beyond those that stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
  /** record this one, even if the session does not (false) */
  record?: boolean;
}

export interface ExecWait {
  /** the command's id; opaque */
  exec_id: string;
  /** where in the stream to continue (0) */
  offset?: number;
  /** the same as `yield_ms`, in seconds; the shorter of the two counts (only at the end) */
  timeout_s?: number;
  /** answer after this time even if the command still runs, with `running` and `next_offset` (only at the end) */
  yield_ms?: number;
}

export interface Execs {
  /** commands, oldest first */
  execs: ExecEntry[];
}

export interface FirstTerminal {
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
  /** shell text to run instead of the interactive shell, without NUL, at most 1 MiB (the session's shell) */
  command?: string;
  /** variables for this terminal only; null unsets */
  env?: Record<string, string | null>;
  /** absolute; for this terminal only (the shell's) */
  working_dir?: string;
  /** if the client is slower than the output: slow the terminal down, or skip output with a stream.gap and show the screen (block) */
  on_slow?: "block" | "skip";
  /** send at most this many bytes beyond those that stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
  /** record this one, even if the session does not (false) */
  record?: boolean;
}

export interface GapRange {
  /** the first offset that is gone */
  from: number;
  /** the first offset that is available again */
  to: number;
}

export interface InputRefused {
  /** the stream's number */
  stream_no: number;
  /** the offset of the frame */
  offset: number;
  /** why it was not taken */
  error: Error;
}

export interface InputTaken {
  /** how many bytes of input there are now */
  input_offset: number;
}

export interface Isolation {
  /** cgroup or none */
  tier: string;
  /** what the tier relies on, or what prevents a better one */
  why: string;
  /** all tiers, the strongest first */
  tiers: IsolationTier[];
}

export interface IsolationTier {
  /** cgroup or none */
  tier: string;
  /** this machine provides it */
  available: boolean;
  /** it is in use */
  in_force: boolean;
  /** what the tier relies on, or what prevents a better one */
  why: string;
}

export interface LastExec {
  /** the command's id; opaque */
  exec_id: string;
  /** the first 4 KiB of the command as it was sent */
  command: string;
  /** 128+N if signal N ended it; absent while it runs and if it is unknown */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** a timeout ended it */
  timed_out?: boolean;
  /** a cancel ended it */
  cancelled?: boolean;
  /** from start to end */
  duration_ms: number;
  /** when it ended */
  ended_at: string;
}

export interface Limits {
  /** memory of all its processes, and of the files that they keep in memory, at least 8 MiB; absent: no limit */
  memory_bytes?: number;
  /** processes and threads, at least 1; absent: no limit */
  pids?: number;
  /** processors, may be fractional, at least 0.01; absent: no limit */
  cpu?: number;
  /** size of a file that a process writes, at least 1 MiB; absent: no limit */
  file_size_bytes?: number;
  /** open files of one process, at least 16; absent: no limit */
  open_files?: number;
}

export interface Located {
  /** the session's id; opaque */
  session_id: string;
  /** the name of the node that has the session */
  node: string;
  /** the address at which clients reach this node, if it has one of its own */
  url?: string;
}

export interface Logs {
  /** the id of the stream of output; opaque */
  stream_id?: string;
  /** the stream's number in binary frames; absent on a connection without them */
  stream_no?: number;
  /** output in order */
  chunks: Chunk[];
  /** where to continue */
  next_offset: number;
  /** the process has ended and all its output was returned */
  eof: boolean;
  /** the bytes before the first chunk that the ring no longer has */
  gap?: GapRange;
  /** how many bytes of input there are: [input frames](#input-frames) continue there; absent if this connection cannot send any, or no input is taken */
  input_offset?: number;
}

export interface Node {
  /** its name */
  node: string;
  /** what it begins its ids with; identifies the lifetime of its sessions */
  epoch: string;
  /** the address at which clients reach it, if it has one of its own */
  url?: string;
  /** where it is */
  zone?: string;
  /** what its operator says of it */
  labels?: Record<string, string>;
  /** the server's version */
  version: string;
  /** sessions that have not ended */
  active_sessions: number;
  /** the bound on live sessions */
  max_sessions: number;
  /** processes that want to run, per processor */
  load?: number;
  /** new sessions are refused */
  draining?: boolean;
  /** this node answers */
  self?: boolean;
  /** why this server cannot reach it now; absent: it can */
  unreachable?: string;
}

export interface Nodes {
  /** the nodes that the server knows, by name */
  nodes: Node[];
  /** the directory of the cluster does not answer; names that are new cannot be claimed, and other nodes are known as they were (false) */
  degraded?: boolean;
}

export interface Omitted {
  /** bytes of the stream before the omission */
  at: number;
  /** how many are missing */
  bytes: number;
}

export interface OmittedStreams {
  /** what is missing from `stdout` */
  stdout?: Omitted;
  /** what is missing from `stderr` */
  stderr?: Omitted;
}

export interface Output {
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the command's id; opaque */
  exec_id?: string;
  /** the process's id; opaque */
  process_id?: string;
  /** the terminal's id; opaque */
  term_id?: string;
  /** bytes of the stream before this one, stdout and stderr together in the order in which the server read them */
  offset: number;
  /** which output it was written to */
  stream: "stdout" | "stderr" | "tty";
  /** this output is from before the attach; a client must not answer terminal queries in it (false) */
  replay?: boolean;
  /** a terminal's screen, drawn for this client: these are not bytes of the stream, which continues at `offset` (false) */
  snapshot?: boolean;
  /** bytes, as text in `encoding` */
  data: string;
  /** base64 if the bytes are not valid UTF-8; absent: utf-8 */
  encoding?: "utf-8" | "base64";
}

export interface Pong {
  /** whole seconds since the server started */
  uptime_s: number;
  /** the server's version */
  version: string;
  /** the server's clock */
  time: string;
  /** identifies the lifetime of all sessions; a different epoch means that the earlier sessions are gone */
  epoch: string;
  /** the name of the node that answers; absent if there is only one node */
  node?: string;
  /** the directory of the cluster does not answer; names that are new cannot be claimed, and other nodes are known as they were (false) */
  degraded?: boolean;
}

export interface ProcessInfo {
  /** the process's id; opaque */
  process_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** process id */
  pid: number;
  /** its name */
  name?: string;
  /** the first 4 KiB of the command as it was sent */
  command: string;
  /** whether it still runs */
  state: "running" | "exited";
  /** 128+N if signal N ended it; absent while it runs and if it is unknown */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** a timeout ended it */
  timed_out?: boolean;
  /** when it began */
  started_at: string;
  /** when it ended */
  ended_at?: string;
  /** how many bytes it wrote */
  output_bytes: number;
  /** TCP ports on which it, or a process that it started, accepts connections now; absent if there are none or the server cannot see them */
  ports?: number[];
  /** what it and the children that it waited for used, if known */
  usage?: Usage;
  /** the parts of the session's state after its last answered command that the process does not have; absent if none */
  state_lost?: string[];
}

export interface ProcessInput {
  /** the process's id; opaque */
  process_id: string;
  /** bytes, as text in `encoding` */
  data?: string;
  /** how `data` is written (utf-8) */
  encoding?: "utf-8" | "base64";
  /** close the standard input after `data` (false) */
  eof?: boolean;
  /** where in the input `data` begins: the number of bytes of input before it, or OFFSET_MISMATCH. Send it again with the same offset if its answer was lost (after the input so far) */
  offset?: number;
}

export interface ProcessKill {
  /** the process's id; opaque */
  process_id: string;
  /** send only this signal, written with or without SIG, in any case (TERM, grace, KILL) */
  signal?: string;
  /** time between TERM and KILL (5) */
  kill_grace_s?: number;
}

export interface ProcessLogs {
  /** the process's id; opaque */
  process_id: string;
  /** where in the stream to begin (0) */
  offset?: number;
  /** the most in one answer (1 MiB) */
  max_bytes?: number;
  /** send later output as process.output events (false) */
  follow?: boolean;
  /** if the client is slower than the output: slow the command down, or skip output with a stream.gap (block for exec.stream, else skip) */
  on_slow?: "block" | "skip";
  /** with follow: send at most this many bytes beyond those that the answer holds or stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
}

export interface ProcessRef {
  /** the process's id; opaque */
  process_id: string;
}

export interface ProcessStart {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** shell text without NUL, at most 1 MiB */
  command: string;
  /** a label for people */
  name?: string;
  /** variables for this process only; null unsets */
  env?: Record<string, string | null>;
  /** absolute (the shell's) */
  working_dir?: string;
  /** time limit (0, none) */
  timeout_s?: number;
  /** `open`: process.input can write to it; `none`: it is /dev/null (none) */
  stdin?: "none" | "open";
  /** a retry with the same key within 10 minutes gets the first request's result, or joins it, and does nothing twice, even if the gateway was killed or upgraded in between; other params with the same key get INVALID_PARAMS */
  request_key?: string;
}

export interface ProcessStarted {
  /** the process's id; opaque */
  process_id: string;
  /** process id */
  pid: number;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the parts of the session's state after its last answered command that the process does not have; absent if none */
  state_lost?: string[];
}

export interface ProcessWait {
  /** the process's id; opaque */
  process_id: string;
  /** exactly one condition */
  until: Until;
  /** how long to wait at most (until the end) */
  timeout_s?: number;
}

export interface Processes {
  /** each in the shape of process.info; never null */
  processes: ProcessInfo[];
  /** process ids that commands left running */
  background?: number[];
  /** the first 100 of them whose command line the server can read; absent if there are none */
  background_commands?: BackgroundEntry[];
}

export interface Recording {
  /** the recording's id; opaque */
  recording_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the session's name when the recording began */
  session?: string;
  /** the recorded terminal; absent for a command */
  term_id?: string;
  /** the recorded command; absent for a terminal */
  exec_id?: string;
  /** the first 4 KiB of the command as it was sent; absent for a terminal with the session's shell */
  command?: string;
  /** the subject it belongs to */
  owner: string;
  /** whether it is still in progress */
  state: "recording" | "ended";
  /** why it ended; absent while it is in progress */
  reason?: "exit" | "full" | "no_room" | "failed" | "deleted" | "lost";
  /** the exit code of the recorded terminal or command; absent before its end and if it is unknown */
  exit_code?: number;
  /** width at the beginning; a command's is 80 */
  cols: number;
  /** height at the beginning; a command's is 24 */
  rows: number;
  /** when it began */
  started_at: string;
  /** from the beginning to the latest event */
  duration_ms: number;
  /** length of the file */
  size_bytes: number;
  /** bytes of the stream that it has, or reports as missing */
  output_bytes: number;
  /** the server's policy demanded it: only an admin may remove it (false) */
  demanded?: boolean;
}

export interface RecordingList {
  /** only recordings of this session, which may have ended long ago */
  session_id?: string;
  /** everybody's; admins only (false) */
  all?: boolean;
}

export interface RecordingRef {
  /** the recording's id; opaque */
  recording_id: string;
}

export interface Recordings {
  /** never null */
  recordings: Recording[];
  /** the names of nodes that did not answer in time, whose part is missing; absent if none is */
  partial?: string[];
}

export interface ServerShutdown {
  /** how soon, in seconds */
  in_s: number;
}

export interface Session {
  /** the session's id; opaque */
  session_id: string;
  /** identifies the lifetime of all sessions; a different epoch means that the earlier sessions are gone */
  epoch: string;
  /** the name of the node that has it; absent if there is only one node */
  node?: string;
  /** its name */
  name?: string;
  /** the shell's path */
  shell: string;
  /** the shell's working directory */
  working_dir: string;
  /** the session's state */
  state: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** when it was opened */
  created_at: string;
  /** the shell's process id */
  pid?: number;
  /** bounds on the session's processes in force */
  limits: Limits;
  /** keys and values of the client's choice, for session.list and the page */
  labels?: Record<string, string>;
  /** what is recorded in it, by the server's policy or on request */
  record: "off" | "terminals" | "execs" | "all";
  /** labels that a node must have to get the session, as it was created with them; absent if any will do */
  where?: Record<string, string>;
}

export interface SessionCreate {
  /** absolute path, or a name found in PATH; must be on the server's list (the server's default) */
  shell?: string;
  /** added to the base environment; null removes */
  env?: Record<string, string | null>;
  /** absolute, must exist (the server's default) */
  working_dir?: string;
  /** unique among the principal's live sessions */
  name?: string;
  /** time limit of each command that has none of its own (0, none) */
  timeout_s?: number;
  /** ends the session when it has been idle for this long, at most the server's bound (the server's) */
  idle_timeout_s?: number;
  /** what happens when the creating connection is gone, and every other one that sent the same request_key (keep) */
  on_disconnect?: "keep" | "destroy";
  /** what happens when the shell exits or dies: restore its state in another shell, or end the session (restore) */
  on_shell_exit?: "restore" | "terminate";
  /** bounds on the session's processes; a bound above the server's becomes the server's, a bound that the server cannot enforce is NOT_SUPPORTED (the server's) */
  limits?: Limits;
  /** keys and values of the client's choice, for session.list and the page */
  labels?: Record<string, string>;
  /** what happens when a live session has this name (error) */
  if_exists?: "error" | "return";
  /** what to record in it, in addition to what the server's policy demands (off) */
  record?: "off" | "terminals" | "execs" | "all";
  /** a retry with the same key within 10 minutes gets the first request's result, or joins it, and does nothing twice, even if the gateway was killed or upgraded in between; other params with the same key get INVALID_PARAMS */
  request_key?: string;
  /** the name of the node of a cluster on which to open it (the server chooses) */
  node?: string;
  /** labels that the node must have on which to open it, and every node to which it moves; `zone` and `node` are labels, too (any node) */
  where?: Record<string, string>;
  /** a terminal to open in the session, new or found; needs a connection, as term.open does. If it cannot be opened, the request fails, and a session that was made for it ends. Faults of its fields are about `terminal.cols` and so on (none) */
  terminal?: FirstTerminal;
}

export interface SessionCreated {
  /** the session's id; opaque */
  session_id: string;
  /** identifies the lifetime of all sessions; a different epoch means that the earlier sessions are gone */
  epoch: string;
  /** the name of the node that has it; absent if there is only one node */
  node?: string;
  /** its name */
  name?: string;
  /** the shell's path */
  shell: string;
  /** the shell's working directory */
  working_dir: string;
  /** the session's state */
  state: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** when it was opened */
  created_at: string;
  /** the shell's process id */
  pid?: number;
  /** bounds on the session's processes in force */
  limits: Limits;
  /** keys and values of the client's choice, for session.list and the page */
  labels?: Record<string, string>;
  /** what is recorded in it, by the server's policy or on request */
  record: "off" | "terminals" | "execs" | "all";
  /** labels that a node must have to get the session, as it was created with them; absent if any will do */
  where?: Record<string, string>;
  /** the terminal that was opened, as in the answer of term.open; absent if none was asked for */
  terminal?: TermOpened;
}

export interface SessionDestroy {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** KILL at once (false) */
  force?: boolean;
  /** time between TERM and KILL (5) */
  grace_s?: number;
}

export interface SessionExpiring {
  /** the session's id; opaque */
  session_id: string;
  /** how soon, in seconds */
  in_s: number;
}

export interface SessionInfo {
  /** the session's id; opaque */
  session_id: string;
  /** the epoch to which this session belongs */
  epoch: string;
  /** the name of the node that has it; absent if there is only one node */
  node?: string;
  /** its name */
  name?: string;
  /** the shell's path */
  shell: string;
  /** the shell's working directory */
  working_dir: string;
  /** the session's state */
  state: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** when it was opened */
  created_at: string;
  /** the shell's process id */
  pid?: number;
  /** bounds on the session's processes in force */
  limits: Limits;
  /** keys and values of the client's choice, for session.list and the page */
  labels?: Record<string, string>;
  /** what is recorded in it, by the server's policy or on request */
  record: "off" | "terminals" | "execs" | "all";
  /** labels that a node must have to get the session, as it was created with them; absent if any will do */
  where?: Record<string, string>;
  /** when something last happened in it; pings do not count */
  last_active_at: string;
  /** number of variables that the shell started with: the base environment and those of session.create */
  env_count: number;
  /** number of ended commands */
  commands_run: number;
  /** the time limit of commands that name none; absent: none */
  timeout_s?: number;
  /** how long the session may be idle before it ends; absent: for ever */
  idle_timeout_s?: number;
  /** the running command, in state RUNNING */
  current_exec?: CurrentExec;
  /** commands waiting for their turn */
  queue_length: number;
  /** running background processes */
  processes: number;
  /** open terminals */
  terminals: number;
  /** what runs in its open terminals, oldest terminal first: a terminal's command, or the command that its shell's marks report; absent if nothing is known to run */
  in_terminals?: TermRunning[];
  /** recordings of it in progress */
  recording: number;
  /** process ids that commands left running */
  background?: number[];
  /** the subject it belongs to */
  owner?: string;
  /** private memory of its processes when the server last asked for it, a second or more ago; absent at first, and if it is not known */
  memory_bytes?: number;
  /** the command that ended last; absent before the first */
  last_exec?: LastExec;
  /** when the session ended */
  terminated_at?: string;
  /** why the session ended */
  reason?: "client" | "idle" | "expired" | "shell_exited" | "shell_failed" | "disconnect" | "shutdown" | "limit";
}

export interface SessionList {
  /** only sessions in this state */
  state?: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** only sessions with this label: `key` or `key=value` */
  label?: string;
  /** everybody's sessions; admins only */
  all?: boolean;
  /** this principal's sessions instead of your own; admins only */
  owner?: string;
}

export interface SessionMove {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** the name of the node that has it; absent if there is only one node */
  node: string;
}

export interface SessionMoved {
  /** the session's id; opaque */
  session_id: string;
  /** the name of the node that has it; absent if there is only one node */
  node: string;
  /** the parts of the state after the last answered command that are lost: variables, functions, aliases, options (with traps and the umask), working_dir, or the name of an option; absent if none are */
  state_lost?: string[];
}

export interface SessionRef {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
}

export interface SessionRename {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** the new name */
  name: string;
}

export interface SessionState {
  /** the session's id; opaque */
  session_id: string;
  /** the state before */
  from: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** the state now */
  to: "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";
  /** when it happened */
  at: string;
  /** why the session ended */
  reason?: "client" | "idle" | "expired" | "shell_exited" | "shell_failed" | "disconnect" | "shutdown" | "limit";
}

export interface SessionUpdate {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** the session's labels from now on, in place of all earlier ones; {}: none (unchanged) */
  labels?: Record<string, string>;
  /** time limit of commands that name none, at most the server's bound; 0: none (unchanged) */
  timeout_s?: number;
  /** ends the session when it has been idle for this long, at most the server's bound; 0: never. The idle clock restarts (unchanged) */
  idle_timeout_s?: number;
}

export interface Sessions {
  /** never null */
  sessions: SessionInfo[];
  /** the names of nodes that did not answer in time, whose part is missing; absent if none is */
  partial?: string[];
}

export interface Share {
  /** the link's id; opaque, not a secret */
  share_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the shared terminal; absent: the whole session is shared */
  term_id?: string;
  /** whether guests may only watch, or also type and run commands */
  mode: "control" | "view";
  /** a label for people */
  name?: string;
  /** when it was opened */
  created_at: string;
  /** when it ends */
  expires_at: string;
  /** connections that use it now */
  clients: number;
}

export interface ShareCreate {
  /** all of this session */
  session_id?: string;
  /** the same, by its name */
  session?: string;
  /** only this terminal, instead of a session */
  term_id?: string;
  /** whether guests may only watch, or also type and run commands (view) */
  mode?: "control" | "view";
  /** a label for people, shown in lists and among a terminal's viewers */
  name?: string;
  /** the lifetime of the link, more than 0 and at most 30 days, but not beyond the end of the credential that makes it (a day) */
  expires_in_s?: number;
}

export interface ShareCreated {
  /** the link's id; opaque, not a secret */
  share_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the shared terminal; absent: the whole session is shared */
  term_id?: string;
  /** whether guests may only watch, or also type and run commands */
  mode: "control" | "view";
  /** a label for people */
  name?: string;
  /** when it was opened */
  created_at: string;
  /** when it ends */
  expires_at: string;
  /** connections that use it now */
  clients: number;
  /** the secret: only this answer has it, and the server does not keep it */
  token: string;
  /** the page's address for this link, below the server's own: the token is in the fragment, which browsers send to nobody */
  path: string;
}

export interface ShareRef {
  /** the link's id; opaque, not a secret */
  share_id: string;
}

export interface Shares {
  /** links, oldest first */
  shares: Share[];
}

export interface Stats {
  /** sessions that have not ended */
  active_sessions: number;
  /** new sessions are refused */
  draining: boolean;
  /** sessions in each state */
  by_state: Record<string, number>;
  /** the bound on live sessions */
  max_sessions: number;
  /** commands since the server started */
  total_commands_run: number;
  /** running commands */
  running: number;
  /** commands waiting for their turn */
  queued: number;
  /** running background processes */
  processes: number;
  /** open terminals */
  terminals: number;
  /** shells ready for session.create */
  warm_shells: number;
  /** whole seconds since the server started */
  uptime_s: number;
  /** the server's resident set */
  memory_rss_bytes: number;
  /** the names of nodes that did not answer in time, whose part is missing; absent if none is */
  partial?: string[];
  /** how far a drain is that moves sessions; for admins; absent if none does */
  moves?: DrainMoves;
}

export interface StreamAck {
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the client is done with every byte of the stream before this offset */
  offset: number;
}

export interface StreamGap {
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the first offset that is gone */
  from: number;
  /** the first offset that is available again */
  to: number;
}

export interface StreamOpened {
  /** the command's id; opaque */
  exec_id?: string;
  /** the process's id; opaque */
  process_id?: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the stream's number in binary frames; absent on a connection without them */
  stream_no?: number;
  /** bytes of the stream before this one, stdout and stderr together in the order in which the server read them */
  offset: number;
  /** how many bytes of input there are: [input frames](#input-frames) continue there; absent if this connection cannot send any, or no input is taken */
  input_offset?: number;
  /** the recording of the command; absent if there is none */
  recording_id?: string;
}

export interface StreamStarted {
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the stream's number in binary frames; absent on a connection without them */
  stream_no: number;
  /** the command's id; opaque */
  exec_id?: string;
}

export interface SystemStats {
  /** the name of the only node of a cluster to count (all) */
  node?: string;
}

export interface TermAttach {
  /** the terminal's id; opaque */
  term_id: string;
  /** where in the stream to begin; if that is no longer kept: a stream.gap and the screen (the oldest byte that is kept) */
  offset?: number;
  /** `control`: take over typing and the size; `view`: only watch (control) */
  mode?: "control" | "view";
  /** the `claim` of an earlier answer, to come back as before: a client that asked for control later keeps it (take over) */
  claim?: number;
  /** the width of the client's window, which the terminal gets if the client has control (unchanged) */
  cols?: number;
  /** its height */
  rows?: number;
  /** begin with the screen instead of history (false) */
  snapshot?: boolean;
  /** if the requested beginning is gone, send everything that is kept before the screen (false) */
  history?: boolean;
  /** if the client is slower than the output: slow the terminal down, or skip output with a stream.gap and show the screen (block for control, skip for view) */
  on_slow?: "block" | "skip";
  /** send at most this many bytes beyond those that stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
}

export interface TermAttached {
  /** the terminal's id; opaque */
  term_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the stream's number in binary frames; absent on a connection without them */
  stream_no?: number;
  /** where in the stream it begins */
  offset: number;
  /** whether this client types now */
  mode: "control" | "view";
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
  /** whether it still runs */
  state: "running" | "exited";
  /** which of `attached` this client is */
  viewer_id: string;
  /** when it asked for control, as a growing number; absent: it only watches */
  claim?: number;
  /** how many bytes of input there are: [input frames](#input-frames) continue there; absent if this connection cannot send any, or no input is taken */
  input_offset?: number;
  /** its recording in progress; absent if there is none */
  recording_id?: string;
}

export interface TermClose {
  /** the terminal's id; opaque */
  term_id: string;
  /** between HUP and KILL (2) */
  kill_grace_s?: number;
}

export interface TermCommand {
  /** the terminal's id; opaque */
  term_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the command line, if the shell reports it */
  command?: string;
  /** absent if the shell does not report it */
  exit_code?: number;
  /** absent if this gateway did not see the start */
  duration_ms?: number;
  /** where in the stream its output begins */
  offset: number;
  /** where in the stream its output ends */
  end_offset: number;
}

export interface TermControl {
  /** the terminal's id; opaque */
  term_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** what this client may do from now on */
  mode: "control" | "view";
  /** who took control */
  by?: TermViewer;
}

export interface TermInfo {
  /** the terminal's id; opaque */
  term_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the process id of its first process */
  pid: number;
  /** whether it still runs */
  state: "running" | "exited";
  /** the exit code of its first process; 128+N if signal N ended it; absent while it runs */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
  /** the first 4 KiB of the command as it was sent, or the shell's path */
  command: string;
  /** number of attached connections, in either mode */
  viewers: number;
  /** when it began */
  started_at: string;
  /** when it ended */
  ended_at?: string;
  /** how many bytes it wrote */
  output_bytes: number;
  /** its recording in progress; absent if there is none */
  recording_id?: string;
  /** the parts of the session's state after its last answered command that the terminal does not have; absent if none */
  state_lost?: string[];
  /** the attached clients, in the order in which they came; absent: none */
  attached: TermViewer[];
}

export interface TermInput {
  /** the terminal's id; opaque */
  term_id: string;
  /** the input, as text in `encoding` */
  data: string;
  /** how `data` is written (utf-8) */
  encoding?: "utf-8" | "base64";
  /** where in the input `data` begins: the number of bytes of input before it, or OFFSET_MISMATCH. Send it again with the same offset if its answer was lost (after the input so far) */
  offset?: number;
}

export interface TermOpen {
  /** the session's id; opaque */
  session_id?: string;
  /** the session's name, instead of its id */
  session?: string;
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
  /** shell text to run instead of the interactive shell, without NUL, at most 1 MiB (the session's shell) */
  command?: string;
  /** variables for this terminal only; null unsets */
  env?: Record<string, string | null>;
  /** absolute; for this terminal only (the shell's) */
  working_dir?: string;
  /** if the client is slower than the output: slow the terminal down, or skip output with a stream.gap and show the screen (block) */
  on_slow?: "block" | "skip";
  /** a retry with the same key within 10 minutes gets the first request's result, or joins it, and does nothing twice, even if the gateway was killed or upgraded in between; other params with the same key get INVALID_PARAMS */
  request_key?: string;
  /** send at most this many bytes beyond those that stream.ack has acknowledged (0, no such bound) */
  window_bytes?: number;
  /** record this one, even if the session does not (false) */
  record?: boolean;
}

export interface TermOpened {
  /** the terminal's id; opaque */
  term_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** the stream's number in binary frames; absent on a connection without them */
  stream_no?: number;
  /** the process id of its first process */
  pid: number;
  /** which of `attached` this client is */
  viewer_id: string;
  /** when it asked for control, as a growing number; absent: it only watches */
  claim: number;
  /** how many bytes of input there are: [input frames](#input-frames) continue there; absent if this connection cannot send any, or no input is taken */
  input_offset?: number;
  /** its recording in progress; absent if there is none */
  recording_id?: string;
  /** the parts of the session's state after its last answered command that the terminal does not have; absent if none */
  state_lost?: string[];
}

export interface TermRef {
  /** the terminal's id; opaque */
  term_id: string;
}

export interface TermResize {
  /** the terminal's id; opaque */
  term_id: string;
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
}

export interface TermResized {
  /** the terminal's id; opaque */
  term_id: string;
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
}

export interface TermRunning {
  /** the terminal's id; opaque */
  term_id: string;
  /** its text */
  command: string;
  /** when it began; absent if an earlier gateway saw the beginning */
  started_at?: string;
}

export interface TermSnapshot {
  /** the terminal's id; opaque */
  term_id: string;
  /** its width in characters, 1 to 1000 */
  cols: number;
  /** its height in lines, 1 to 1000 */
  rows: number;
  /** the screen from the top, one line of text for each row, without trailing blanks */
  lines: string[];
  /** where the next character goes */
  cursor: Cursor;
  /** the alternate screen is shown: a full-screen program runs */
  alternate: boolean;
  /** the window title */
  title?: string;
  /** bytes of the stream from which the screen results */
  offset: number;
  /** whether it still runs */
  state: "running" | "exited";
  /** bytes before `offset` that a full-screen program printed and that the server skipped, because the program prints faster than the server draws or because they are no longer kept: the screen may lack what they drew */
  skipped_bytes?: number;
}

export interface TermViewer {
  /** which of `attached` this client is */
  viewer_id: string;
  /** who it is */
  subject: string;
  /** whether it types or watches */
  mode: "control" | "view";
  /** when it came */
  since: string;
  /** the width of its window; absent if unknown */
  cols?: number;
  /** the height of its window; absent if unknown */
  rows?: number;
  /** its share link; absent: it has the owner's token */
  via?: string;
}

export interface TermViewers {
  /** the terminal's id; opaque */
  term_id: string;
  /** the session's id; opaque */
  session_id: string;
  /** the id of the stream of output; opaque */
  stream_id: string;
  /** number of attached connections, in either mode */
  viewers: number;
  /** the attached clients, in the order in which they came; absent: none */
  attached: TermViewer[];
}

export interface Terminals {
  /** never null */
  terminals: TermInfo[];
}

export interface Unmoved {
  /** the session's id; opaque */
  session_id: string;
  /** what the session has that cannot go along, as `details.reason` of session.move, or the code of the error of the last attempt */
  reason: "client" | "idle" | "expired" | "shell_exited" | "shell_failed" | "disconnect" | "shutdown" | "limit";
  /** the error of the last attempt; it is repeated */
  message?: string;
}

export interface Until {
  /** it has ended */
  exit?: boolean;
  /** something accepts connections on this TCP port */
  port?: number;
  /** the host of `port` (127.0.0.1) */
  host?: string;
  /** its output matches this regular expression (RE2), at most 1 KiB and 100 KiB compiled */
  output?: string;
  /** this URL answers with a status below 400 */
  http?: string;
}

export interface Usage {
  /** processor time */
  cpu_ms: number;
  /** largest resident set of a process */
  max_rss_bytes?: number;
  /** most memory at any time, of all processes, including file cache; known only with a memory limit */
  memory_peak_bytes?: number;
}

export interface WaitResult {
  /** whether the condition was met; if not, the process has ended (`exit_code` is present) or the time is over */
  met: boolean;
  /** 128+N if signal N ended it; absent while it runs and if it is unknown */
  exit_code?: number;
  /** the signal that ended it, without SIG; absent if none did */
  signal?: string;
  /** what the regular expression matched */
  match?: string;
  /** the last output, if the process ended first */
  tail?: string;
}

export interface Who {
  /** the token's subject */
  subject: string;
  /** what it may do: a viewer only reads */
  role: string;
  /** the share link of this connection, which bounds what it may reach; absent if the connection has its own principal */
  share?: Share;
}

/** Every method: its params, and the data of its answer. */
export interface Methods {
  /** Opens a session: a shell with its own environment, working directory and processes. With `terminal` it also opens a terminal in it, as term.open does. */
  "session.create": { params: SessionCreate; result: SessionCreated };
  /** Describes a session; an ended one stays readable for the retention time. */
  "session.info": { params: SessionRef; result: SessionInfo };
  /** Lists the principal's sessions; an admin may list another principal's or everybody's. */
  "session.list": { params: SessionList; result: Sessions };
  /** Ends a session and answers once all its processes are gone. Repeating it gives the same answer. */
  "session.destroy": { params: SessionDestroy; result: Destroyed };
  /** Gives a session another name. */
  "session.rename": { params: SessionRename; result: Session };
  /** Changes a session's labels and its timeouts. What is absent stays as it is. Commands that have been requested keep their time limit. */
  "session.update": { params: SessionUpdate; result: SessionInfo };
  /** Replaces the shell by a fresh one, with the working directory and environment from the session's creation. Running work is cancelled, and processes end. */
  "session.reset": { params: SessionRef; result: Session };
  /** Restarts the idle clock. */
  "session.touch": { params: SessionRef; result: {} };
  /** Subscribes this connection to everything that happens in a session. */
  "session.watch": { params: SessionRef; result: SessionInfo };
  /** Ends a session.watch. */
  "session.unwatch": { params: SessionRef; result: {} };
  /** Tells which node of a cluster has the session, and at which address clients reach that node without another one in between. On a single node it is that node. */
  "session.locate": { params: SessionRef; result: Located };
  /** Moves an idle session to another node of the cluster. Its id, its name and its ended commands stay as they are; clients need not know. Commands that are sent meanwhile run there. If it is on that node already, nothing is done. */
  "session.move": { params: SessionMove; result: SessionMoved };
  /** Runs a command in the session's shell and answers with its output and exit code. A command that fails is a result, not an error. */
  "exec.run": { params: ExecRun; result: ExecResult };
  /** Runs a command like exec.run, answers at once and sends its output as it arrives: `exec.output` events, then one `exec.exit`. */
  "exec.stream": { params: ExecStream; result: StreamOpened };
  /** Waits for a command and returns its output from an offset on, in the shape of exec.run. With `timeout_s` or `yield_ms` it answers after that time at the latest, with `running: true` and the output so far; the command goes on. */
  "exec.wait": { params: ExecWait; result: ExecResult };
  /** Writes to the standard input of a command started with interactive_stdin. */
  "exec.input": { params: ExecInput; result: InputTaken };
  /** Ends a running command, or removes a queued one from the queue; the session keeps its state. With `signal` it sends only that signal, to the processes that the table under [Signals](#signals) names, and answers at once. If nothing runs, `cancelled` is false. */
  "exec.cancel": { params: ExecCancel; result: ExecCancelled };
  /** Replays a command's output from an offset and follows it to its exec.exit. It also works after the end. */
  "exec.attach": { params: ExecAttach; result: StreamOpened };
  /** Lists a session's latest 200 commands, oldest first: waiting ones, the running one, and ended ones within the retention time. It has the first 4 KiB of each text. */
  "exec.list": { params: SessionRef; result: Execs };
  /** Stops sending this connection the output of a command. The command goes on. */
  "exec.detach": { params: ExecDetach; result: {} };
  /** Starts a background process from the session's current state, without changing it. */
  "process.start": { params: ProcessStart; result: ProcessStarted };
  /** Lists a session's processes, including ended ones within the retention time. */
  "process.list": { params: SessionRef; result: Processes };
  /** Describes a process. */
  "process.info": { params: ProcessRef; result: ProcessInfo };
  /** Returns a process's output from an offset on; with `follow`, later output comes as process.output events. */
  "process.logs": { params: ProcessLogs; result: Logs };
  /** Ends a process.logs with `follow`. */
  "process.detach": { params: ProcessRef; result: {} };
  /** Writes to the standard input of a process started with `stdin: "open"`. */
  "process.input": { params: ProcessInput; result: InputTaken };
  /** Ends a process and its whole tree, and answers when they are gone. With `signal` it sends only that signal and answers at once. */
  "process.kill": { params: ProcessKill; result: ProcessInfo };
  /** Waits until a process exits, listens, prints or answers. After a timeout, or if the process ends before the condition, `met` is false. A viewer may wait only for `exit` and `output`. */
  "process.wait": { params: ProcessWait; result: WaitResult };
  /** Opens a terminal with the session's current state and attaches this connection to it: its output comes as `term.output` events, then one `term.exit`. Without a command it runs the session's shell, interactive. */
  "term.open": { params: TermOpen; result: TermOpened };
  /** Types into a terminal. An attached connection without control may not. */
  "term.input": { params: TermInput; result: InputTaken };
  /** Reports the size of this client's window. The terminal gets that size. An attached connection without control may not. */
  "term.resize": { params: TermResize; result: {} };
  /** Ends a terminal and everything that was started in it (HUP, TERM, KILL), and answers when it is gone. */
  "term.close": { params: TermClose; result: TermInfo };
  /** Replays a terminal's output from an offset, or its screen, and follows it to its term.exit. It also works after the end. In `control` it takes over: the client that had control gets `term.control` and watches from then on. A second attach on a connection replaces the first. */
  "term.attach": { params: TermAttach; result: TermAttached };
  /** Stops sending this connection the output of a terminal. The terminal goes on. */
  "term.detach": { params: TermRef; result: {} };
  /** Lists a session's terminals, including ended ones within the retention time. */
  "term.list": { params: SessionRef; result: Terminals };
  /** Returns a terminal's screen as lines of text, with the cursor. */
  "term.snapshot": { params: TermRef; result: TermSnapshot };
  /** Makes a link to a session, or to one terminal of it, for people without a token: to watch, or also to type. The link ends when it expires or is revoked, when the token that made it is revoked, or when its session is forgotten. */
  "share.create": { params: ShareCreate; result: ShareCreated };
  /** Lists a session's links, oldest first, with the number of connections of each; never their tokens. */
  "share.list": { params: SessionRef; result: Shares };
  /** Ends a link and disconnects its guests. */
  "share.revoke": { params: ShareRef; result: {} };
  /** Lists the principal's latest 1,000 recordings, oldest first: those in progress, and ended ones as long as they are kept. */
  "recording.list": { params: RecordingList; result: Recordings };
  /** Describes a recording. */
  "recording.info": { params: RecordingRef; result: Recording };
  /** Removes a recording; a recording in progress ends. Only an admin may remove one that the server's policy demanded. */
  "recording.delete": { params: RecordingRef; result: {} };
  /** Acknowledges a stream that this client opened or attached with `window_bytes`, up to an offset: the server may send more. The offset only moves forward. For any other stream it has no effect. */
  "stream.ack": { params: StreamAck; result: {} };
  /** Answers with the server's epoch, to show that the server is there. */
  "system.ping": { params: {}; result: Pong };
  /** Makes the server, or another node of its cluster, refuse new sessions, and end when the last one has ended; live sessions go on. For admins. */
  "system.drain": { params: Drain; result: Drained };
  /** Counts sessions, commands, processes and terminals: of all nodes of a cluster, or of one. */
  "system.stats": { params: SystemStats; result: Stats };
  /** Lists the nodes of the cluster; on a single node that node alone. */
  "system.nodes": { params: {}; result: Nodes };
  /** Describes what the server can do, and its bounds. */
  "system.capabilities": { params: {}; result: Capabilities };
}

/** Every event and its data. */
export interface Events {
  /** A session changed its state. */
  "session.state": SessionState;
  /** A session will soon end because it is idle; session.touch prevents it. */
  "session.expiring": SessionExpiring;
  /** A command began. */
  "exec.started": ExecStarted;
  /** A piece of a command's output. */
  "exec.output": Output;
  /** A command ended; the last event of its stream. */
  "exec.exit": ExecExit;
  /** A background process began. */
  "process.started": ProcessInfo;
  /** A piece of a background process's output. */
  "process.output": Output;
  /** A background process ended; the last event of its stream. */
  "process.exit": ProcessInfo;
  /** A terminal was opened. */
  "term.opened": TermInfo;
  /** A piece of a terminal's output, or with `snapshot` its screen. */
  "term.output": Output;
  /** A terminal has another size. */
  "term.resized": TermResized;
  /** A client attached to a terminal or left it, or control changed: who is there now. */
  "term.viewers": TermViewers;
  /** Another client took control of a terminal from this one, or this one has control again. */
  "term.control": TermControl;
  /** A command ended in a terminal whose shell has our marks. */
  "term.command": TermCommand;
  /** A terminal ended; the last event of its stream. */
  "term.exit": TermInfo;
  /** The number of a stream in binary frames, if no answer gave it. */
  "stream.started": StreamStarted;
  /** Input that came in a binary frame was not taken. */
  "input.refused": InputRefused;
  /** Bytes of a stream that this connection will not get: the ring no longer has them, or the client was too slow. */
  "stream.gap": StreamGap;
  /** The server ends; connections close with 1012. */
  "server.shutdown": ServerShutdown;
}

/** The codes of the server's errors. A later server may have more. */
export type Code =
  | "INVALID_REQUEST"
  | "UNKNOWN_METHOD"
  | "INVALID_PARAMS"
  | "REQUEST_TOO_LARGE"
  | "AUTH_FAILED"
  | "FORBIDDEN"
  | "RATE_LIMITED"
  | "SESSION_NOT_FOUND"
  | "SESSION_EXISTS"
  | "SESSION_BUSY"
  | "SESSION_TERMINATED"
  | "SESSION_LOST"
  | "MAX_SESSIONS_REACHED"
  | "SHELL_NOT_FOUND"
  | "SHELL_NOT_ALLOWED"
  | "SHELL_FAILED"
  | "WORKING_DIR_NOT_FOUND"
  | "EXEC_NOT_FOUND"
  | "PROCESS_NOT_FOUND"
  | "TERM_NOT_FOUND"
  | "STREAM_NOT_FOUND"
  | "STDIN_CLOSED"
  | "LIMIT_EXCEEDED"
  | "NOT_SUPPORTED"
  | "SHUTTING_DOWN"
  | "INTERNAL_ERROR"
  | "SHARE_NOT_FOUND"
  | "RECORDING_NOT_FOUND"
  | "NODE_UNREACHABLE"
  | "DIRECTORY_UNAVAILABLE"
  | "OFFSET_MISMATCH";
