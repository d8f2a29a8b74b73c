import { Connection, type ConnectionOptions } from "./connection.ts";
import type { Use } from "./command.ts";
import { ForbiddenError, SessionNotFoundError, SessionTerminatedError } from "./errors.ts";
import { newKey, seconds, wireEnv, type Env } from "./exec.ts";
import type { LogHub } from "./loghub.ts";
import { Session, type SessionInfo } from "./session.ts";
import { createWithTerminal, type Terminal, type TerminalOptions } from "./terminal.ts";
import type * as wire from "./wire.gen.ts";

export interface ConnectOptions extends ConnectionOptions {
  /** The name of the session in which the sandbox's own commands run; it is made if it is not there. "default" by default. */
  session?: string | undefined;
  /** Of the first dial only. */
  signal?: AbortSignal | undefined;
}

export interface SessionOptions {
  /** Unique among the principal's live sessions. */
  name?: string | undefined;
  cwd?: string | undefined;
  env?: Env | undefined;
  /** A path, or a name such as bash or zsh. */
  shell?: string | undefined;
  /** ms; for each command that has no time limit of its own. */
  commandTimeoutMs?: number | undefined;
  /** ms without anything happening; then the session ends. */
  idleTimeoutMs?: number | undefined;
  /** What to do if a live session has this name. */
  ifExists?: "error" | "return" | undefined;
  /** What happens to the session when this connection is gone. */
  onDisconnect?: "keep" | "destroy" | undefined;
  limits?: wire.Limits | undefined;
  labels?: Record<string, string> | undefined;
  record?: wire.SessionCreate["record"];
}

/** Connects to a gateway. Close it in the end: `await using sandbox = await connect(…)` does. */
export async function connect(o: ConnectOptions): Promise<Sandbox> {
  const connection = new Connection(o);
  try {
    await connection.open(o.signal);
    const { id, name } = await ownSession(connection, o.session);
    return new Sandbox(connection, o.session, id, name);
  } catch (error) {
    await connection.close();
    throw error;
  }
}

/** The session of this name, made if need be; for viewers and guests, who may make none, one that is there. */
async function ownSession(connection: Connection, name: string | undefined): Promise<{ id: string; name?: string | undefined }> {
  try {
    const made = await connection.call("session.create", { name: name ?? "default", if_exists: "return" }, { repeat: "always" });
    return { id: made.session_id, name: made.name };
  } catch (error) {
    if (!(error instanceof ForbiddenError)) throw error;
  }
  const { principal } = await connection.call("system.capabilities", {});
  const shared = principal.share?.session_id;
  if (shared !== undefined && (name === undefined || name === shared)) return { id: shared };
  try {
    return await find(connection, name ?? "default");
  } catch (error) {
    if (name !== undefined || !(error instanceof SessionNotFoundError)) throw error;
    return { id: "", name: "default" }; // a viewer who lists sessions needs none
  }
}

/** Looks a session up by its name, and then by its id. */
async function find(connection: Connection, nameOrId: string): Promise<{ id: string; name?: string | undefined }> {
  let info: SessionInfo;
  try {
    info = await connection.call("session.info", { session: nameOrId });
  } catch (error) {
    if (!(error instanceof SessionNotFoundError)) throw error;
    info = await connection.call("session.info", { session_id: nameOrId });
  }
  return { id: info.session_id, name: info.name };
}

function createParams(o: SessionOptions): wire.SessionCreate {
  return {
    name: o.name,
    working_dir: o.cwd,
    env: wireEnv(o.env),
    shell: o.shell,
    timeout_s: seconds(o.commandTimeoutMs),
    idle_timeout_s: seconds(o.idleTimeoutMs),
    if_exists: o.ifExists,
    on_disconnect: o.onDisconnect,
    limits: o.limits,
    labels: o.labels,
    record: o.record,
    request_key: newKey(),
  };
}

/** A gateway, and a session of its own for commands. If that session ends, the request that hears of it fails, and the next one makes another session. */
export class Sandbox extends Session {
  private gone = false;
  private finding: Promise<void> | undefined;

  /** @internal */
  constructor(
    connection: Connection,
    private readonly wanted: string | undefined,
    id: string,
    name?: string,
  ) {
    super(connection, new Map<string, LogHub>(), id, name);
  }

  protected override readonly use: Use = async (ask) => {
    if (this.gone) await (this.finding ??= this.find().finally(() => (this.finding = undefined)));
    const { id } = this;
    try {
      return await ask(id);
    } catch (error) {
      const ended = error instanceof SessionTerminatedError || error instanceof SessionNotFoundError;
      if (ended && id === this.id) this.gone = true;
      throw error;
    }
  };

  private async find(): Promise<void> {
    const { id, name } = await ownSession(this.connection, this.wanted);
    this.identify(id, name);
    this.gone = false;
  }

  async createSession(o: SessionOptions = {}): Promise<Session> {
    const made = await this.connection.call("session.create", createParams(o));
    return new Session(this.connection, this.hubs, made.session_id, made.name);
  }

  /** createSession and openTerminal in one request. If the terminal cannot be opened, no session is made. */
  async createSessionWithTerminal(o: SessionOptions, terminal: TerminalOptions): Promise<{ session: Session; terminal: Terminal }> {
    const opened = await createWithTerminal(this.connection, createParams(o), terminal);
    return { session: new Session(this.connection, this.hubs, opened.made.session_id, opened.made.name), terminal: opened.terminal };
  }

  /** A session that is there, by its name or its id. */
  async getSession(nameOrId: string): Promise<Session> {
    const { id, name } = await find(this.connection, nameOrId);
    return new Session(this.connection, this.hubs, id, name);
  }

  async listSessions(o: { label?: string; state?: SessionInfo["state"]; all?: boolean } = {}): Promise<SessionInfo[]> {
    return (await this.connection.call("session.list", o)).sessions;
  }

  async deleteSession(nameOrId: string, o: { force?: boolean } = {}): Promise<void> {
    await (await this.getSession(nameOrId)).destroy(o);
  }

  /** Sends any request of the protocol. It is repeated after a lost connection only if that does no harm. */
  call<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"], o: { signal?: AbortSignal } = {}): Promise<wire.Methods[M]["result"]> {
    return this.connection.call(method, params, o);
  }

  /** Calls a listener for every event of this name that is not output. The function that it returns ends that. */
  on<E extends EventName>(event: E, listener: (data: wire.Events[E]) => void): () => void {
    return this.connection.on(event, listener);
  }

  /** Closes the connection. Sessions, commands, processes and terminals go on. */
  async close(): Promise<void> {
    await this.connection.close();
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

export type EventName = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap">;
