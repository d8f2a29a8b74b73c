// The messages of the protocol that the page uses, as in protocol/types.go; protocol/PROTOCOL.md describes them.

export type SessionState = "CREATING" | "IDLE" | "RUNNING" | "TERMINATED";

export interface Limits {
  memory_bytes?: number;
  pids?: number;
  cpu?: number;
}

export interface SessionData {
  session_id: string;
  epoch: string;
  name?: string;
  shell: string;
  working_dir: string;
  state: SessionState;
  created_at: string;
  pid?: number;
  limits: Limits;
  labels?: Record<string, string>;
}

export interface LastExec {
  exec_id: string;
  command: string;
  exit_code?: number;
  signal?: string;
  duration_ms: number;
  ended_at: string;
}

export interface SessionInfo extends SessionData {
  owner?: string;
  memory_bytes?: number;
  last_exec?: LastExec;
  last_active_at: string;
  env_count: number;
  commands_run: number;
  current_exec?: { id: string; command: string; started_at: string };
  queue_length: number;
  processes: number;
  terminals: number;
  in_terminals?: { term_id: string; command: string; started_at?: string }[];
  recording: number;
  background?: number[];
  terminated_at?: string;
  reason?: string;
}

export interface ExecExit {
  exec_id: string;
  session_id: string;
  stream_id: string;
  stdout_bytes: number;
  stderr_bytes: number;
  exit_code?: number;
  signal?: string;
  duration_ms: number;
  queued_ms: number;
  timed_out: boolean;
  timeout_kind?: string;
  timeout_s?: number;
  cancelled: boolean;
  shell_restored: boolean;
  state_lost?: string[];
  oom_killed?: boolean;
  limit_hit?: string;
  working_dir: string;
  background?: number[];
  error?: { code: string; message: string };
}

export interface ExecStarted {
  session_id: string;
  exec_id: string;
  stream_id: string;
  stream_no?: number;
  command: string;
  at: string;
}

/** A command in the shape of exec.list: waiting, running, or ended with its exit. */
export interface ExecEntry {
  exec_id: string;
  stream_id: string;
  command: string;
  state: "queued" | "running" | "ended";
  queued_at: string;
  started_at?: string;
  exit?: ExecExit;
}

export interface ProcessInfo {
  process_id: string;
  session_id: string;
  stream_id: string;
  stream_no?: number;
  pid: number;
  name?: string;
  command: string;
  state: "running" | "exited";
  exit_code?: number;
  signal?: string;
  timed_out?: boolean;
  started_at: string;
  ended_at?: string;
  output_bytes: number;
  ports?: number[];
}

export interface StreamOpened {
  exec_id?: string;
  process_id?: string;
  term_id?: string;
  stream_id: string;
  stream_no?: number;
  offset: number;
}

export interface WireChunk {
  offset: number;
  stream: StreamName;
  data: string;
  encoding?: string;
}

export interface TermInfo {
  term_id: string;
  stream_id?: string;
  state: "running" | "exited";
  exit_code?: number;
  cols: number;
  rows: number;
  command: string;
  viewers: number;
  attached?: TermViewer[];
}

/** A client at a terminal. */
export interface TermViewer {
  viewer_id: string;
  subject: string;
  mode: "control" | "view";
  since: string;
  cols?: number;
  rows?: number;
  via?: string;
}

export interface TermOpened {
  term_id: string;
  stream_id: string;
  stream_no?: number;
  pid: number;
  recording_id?: string;
  viewer_id: string;
  claim: number;
}

export interface TermAttached extends StreamOpened {
  mode: "control" | "view";
  cols: number;
  rows: number;
  state: "running" | "exited";
  recording_id?: string;
  viewer_id: string;
  claim?: number;
}

/** A recording, ended or in progress; its file is at addressOf (player.ts). */
export interface Recording {
  recording_id: string;
  session_id: string;
  session?: string;
  term_id?: string;
  exec_id?: string;
  command?: string;
  state: "recording" | "ended";
  reason?: string;
  exit_code?: number;
  started_at: string;
  duration_ms: number;
  size_bytes: number;
}

export interface Stats {
  active_sessions: number;
  by_state: Partial<Record<SessionState, number>>;
  max_sessions: number;
  total_commands_run: number;
  running: number;
  queued: number;
  processes: number;
  terminals: number;
  warm_shells: number;
  uptime_s: number;
  memory_rss_bytes: number;
}

export interface Capabilities {
  version: string;
  shells: string[];
  default_shell: string;
  subprotocols: string[];
  methods: string[];
  isolation: { tier: string; why: string };
  limits: Record<string, number>;
  principal?: { subject: string; role: "admin" | "user" | "viewer"; share?: Share };
  record?: string; // what is recorded in every session; absent: the server cannot record
}

export interface Share {
  share_id: string;
  session_id: string;
  term_id?: string;
  mode: "control" | "view";
  name?: string;
  expires_at: string;
  clients: number;
}

interface SessionRef {
  session_id: string;
}
interface None {}

/** Every method that the page calls: its params and the data of its success. */
export interface Methods {
  "session.create": [{ name?: string; shell?: string; working_dir?: string; labels?: Record<string, string> }, SessionData];
  "session.info": [SessionRef, SessionInfo];
  "session.list": [{ state?: SessionState }, { sessions: SessionInfo[] }];
  "session.destroy": [SessionRef & { force?: boolean }, { session_id: string; state: string; reason: string }];
  "session.rename": [SessionRef & { name: string }, SessionData];
  "session.touch": [SessionRef, None];
  "session.watch": [SessionRef, SessionInfo];
  "session.unwatch": [SessionRef, None];

  "exec.list": [SessionRef, { execs: ExecEntry[] }];
  "exec.stream": [SessionRef & { command: string }, StreamOpened];
  "exec.attach": [{ exec_id: string; offset?: number; on_slow?: "block" | "skip" }, StreamOpened];
  "exec.detach": [{ exec_id: string }, None];
  "exec.cancel": [{ exec_id: string }, { exec_id?: string; cancelled: boolean }];

  "process.list": [SessionRef, { processes: ProcessInfo[]; background?: number[] }];
  "process.logs": [
    { process_id: string; offset?: number; max_bytes?: number; follow?: boolean; on_slow?: "block" | "skip" },
    { stream_id?: string; stream_no?: number; chunks: WireChunk[]; next_offset: number; eof: boolean; gap?: { from: number; to: number } },
  ];
  "process.detach": [{ process_id: string }, None];
  "process.kill": [{ process_id: string; signal?: string }, ProcessInfo];

  "term.open": [SessionRef & { cols: number; rows: number; command?: string; window_bytes?: number; record?: boolean; request_key?: string }, TermOpened];
  "term.input": [{ term_id: string; data: string; encoding?: "base64" }, None];
  "term.resize": [{ term_id: string; cols: number; rows: number }, None];
  "term.close": [{ term_id: string }, None];
  "term.attach": [{ term_id: string; offset?: number; mode: "control" | "view"; claim?: number; cols?: number; rows?: number; snapshot?: boolean; history?: boolean; window_bytes?: number }, TermAttached];
  "term.detach": [{ term_id: string }, None];
  "term.list": [SessionRef, { terminals: TermInfo[] }];

  "share.create": [{ session_id?: string; term_id?: string; mode: "control" | "view"; name?: string; expires_in_s: number }, Share & { token: string; path: string }];
  "share.list": [SessionRef, { shares: Share[] }];
  "share.revoke": [{ share_id: string }, None];
  "recording.list": [{ session_id?: string }, { recordings: Recording[] }];
  "recording.info": [{ recording_id: string }, Recording];
  "recording.delete": [{ recording_id: string }, None];

  "stream.ack": [{ stream_id: string; offset: number }, None];

  "system.ping": [None, { uptime_s: number; version: string; time: string; epoch: string }];
  "system.stats": [None, Stats];
  "system.capabilities": [None, Capabilities];
}

/** Every event that the page listens to. Output comes as Chunk (stream.ts) instead, whichever framing brought it. */
export interface Events {
  "session.state": { session_id: string; from: SessionState; to: SessionState; at: string; reason?: string };
  "session.expiring": { session_id: string; in_s: number };
  "exec.started": ExecStarted;
  "exec.exit": ExecExit;
  "process.started": ProcessInfo;
  "process.exit": ProcessInfo;
  "term.opened": { session_id: string; term_id: string };
  "term.exit": { term_id: string; exit_code?: number; signal?: string };
  "term.resized": { term_id: string; cols: number; rows: number };
  "term.viewers": { term_id: string; viewers: number; attached?: TermViewer[] };
  "term.control": { term_id: string; mode: "control" | "view"; by?: TermViewer };
  "term.command": { term_id: string; command?: string; exit_code?: number; duration_ms?: number };
  "server.shutdown": { in_s: number };
}

export type StreamName = "stdout" | "stderr" | "tty";

/** The error of a refused request, or OFFLINE if the answer will never come. */
export class Refusal extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}
