import { pause, until } from "./abort.ts";
import { endpoint, tokenProtocol, whyRefused } from "./address.ts";
import { afterSending, AuthError, ClosedError, ConnectionLostError, TrlError } from "./errors.ts";
import { defaultPace, Heartbeat, type Pace, type Pulse } from "./heartbeat.ts";
import { Link, type Follower, type Sink } from "./link.ts";
import { repeats } from "./repeat.gen.ts";
import type * as wire from "./wire.gen.ts";

export interface ConnectionOptions {
  /** `http://HOST:PORT`, `https://…`, or the address of the WebSocket itself. */
  url: string | URL;
  /** A token or a JWT. */
  token?: string | undefined;
  /** Gets a ticket before each dial, for pages that must not have a token. */
  ticket?: (() => Promise<string>) | undefined;
  /**
   * For how long (ms) a lost connection is dialled, 45 s by default; counted anew when somebody first needs it. Afterwards each call that needs one makes
   * one attempt.
   */
  patience?: number | undefined;
  /** The class to use where the runtime has none, such as that of `ws`. */
  WebSocket?: typeof globalThis.WebSocket | undefined;
  onState?: ((state: ConnectionState) => void) | undefined;
}

export interface ConnectionState {
  /** `down`: it is being dialled again. `closed`: it was given up, and the next call tries once more; or it was closed for good. */
  kind: "up" | "down" | "closed";
  why?: string;
  /** The number of the failed dial since it was lost. */
  attempt?: number;
  /** `down`: ms until the next dial. */
  retryIn?: number;
  /** The code with which the server closed the connection that was lost; 1006 if it did not close it. */
  code?: number;
  /** `closed`: why no other dial would help. */
  error?: Error;
}

type Params<M extends keyof wire.Methods> = wire.Methods[M]["params"];
type Result<M extends keyof wire.Methods> = wire.Methods[M]["result"];

export interface CallOptions {
  signal?: AbortSignal | undefined;
  /** What to do if the connection is lost before the answer. By default the method and its params decide. */
  repeat?: "always";
  sink?: Sink;
  /** Told of each sending. */
  sent?: (link: Link, id: number) => void;
}

const dialTimeout = 10_000;
const firstPause = 50;
const lastPause = 4_000;
/** The longest pause between dials after a minute without a connection. */
const lastPauseOfLong = 15_000;
/** Before dialling a server that accepted a connection and dropped it at once. */
const afterUselessPause = 250;

type Repeat = "always" | "keyed" | "never";

/**
 * Whether a request may be sent again after its answer was lost; keyed: to a server of the same epoch. protocol/repeat.go has the rules. A request
 * without a session_id is not keyed: the default session may have ended meanwhile, and the next one does not know the key.
 */
function repeatOf(method: string, params: object): Repeat {
  const repeat = Object.hasOwn(repeats, method) ? repeats[method as keyof wire.Methods] : "never"; // a later server may have more methods
  const { session_id, request_key, exec_id, process_id, signal } = params as Record<string, unknown>;
  if (repeat === "keyed") return request_key && (session_id || method === "session.create") ? "keyed" : "never";
  if (repeat === "end") return (exec_id || process_id) && !signal ? "always" : "never";
  return repeat;
}

/** A connection to a gateway that is made again when it is lost. */
export class Connection {
  /** Of the server at the last dial: another one means that the sessions of before are gone. */
  epoch = "";

  private readonly socketUrl: URL;
  private readonly patience: number;
  private link: Link | undefined;
  private dialling: Promise<Link> | undefined;
  private until = 0; // when our patience ends, by performance.now()
  private missed = false; // somebody has needed a connection since the last useful one was lost
  private wait = 0; // before the next dial
  private closed = false;
  private failure: Error | undefined; // no other dial will help
  private readonly closing = new AbortController();
  private readonly listeners = new Map<string, Set<(data: never) => void>>();
  private readonly followers = new Map<string, Follower>();
  private heart: Heartbeat | undefined;
  private hurry = new AbortController(); // ends the pause before the next dial
  private readonly siblings = new Set<Connection>();

  constructor(
    private readonly o: ConnectionOptions,
    private readonly pace: Pace = defaultPace,
    private readonly pulse: Pulse = {},
  ) {
    this.socketUrl = endpoint(o.url);
    this.patience = o.patience ?? 45_000;
  }

  /** Dials for the first time. */
  async open(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.dialling = this.dial(signal ? AbortSignal.any([signal, this.closing.signal]) : this.closing.signal).finally(() => (this.dialling = undefined));
    await this.dialling;
  }

  /** Dials now, for another time of our patience, if there is no connection: also after an end that seemed to be final. */
  retry(): void {
    if (this.closed || this.current) return;
    this.failure = undefined;
    this.until = performance.now() + this.patience;
    this.hurry.abort();
    this.hurry = new AbortController();
    this.redial().catch(() => {}); // onState tells
  }

  /** A live link. It waits for one that is being dialled. */
  async connected(signal?: AbortSignal): Promise<Link> {
    for (;;) {
      if (this.closed) throw new ClosedError();
      if (this.link && !this.link.loss) return this.link;
      if (this.failure) throw this.failure;
      this.miss();
      await until(signal, this.dialling ?? this.redial());
    }
  }

  /** Somebody needs a connection. The time of our patience counts from the first time, because until then nobody waited. */
  private miss(): void {
    if (this.missed || !this.link) return;
    this.missed = true;
    this.until = performance.now() + this.patience;
  }

  /** The live link, if there is one now. */
  get current(): Link | undefined {
    return this.link?.loss ? undefined : this.link;
  }

  /**
   * Sends a request, and again if the connection is lost before the answer and that does no harm. A keyed request is not repeated in another epoch: the
   * new server knows neither its key nor its session.
   */
  async call<M extends keyof wire.Methods>(method: M, params: Params<M> | (() => Params<M>), o: CallOptions = {}): Promise<Result<M>> {
    o.signal?.throwIfAborted();
    let asked: string | undefined; // the epoch of the server that may have got the request
    let repeat: Repeat = "never";
    const node = this.nodeWait();
    for (;;) {
      let link: Link;
      try {
        link = this.current ?? (await this.connected(o.signal));
      } catch (error) {
        throw asked === undefined || (repeat === "always" && error instanceof TrlError) ? error : afterSending(error);
      }
      const { epoch } = this;
      if (asked !== undefined && asked !== epoch && repeat === "keyed") {
        throw new ConnectionLostError(`${method}: the server was started anew before it answered`, "unknown");
      }
      const now = typeof params === "function" ? (params as () => Params<M>)() : params;
      repeat = o.repeat ?? repeatOf(method, now);
      const { id, answer } = link.call(method, now, o.sink);
      o.sent?.(link, id);
      try {
        return await until(o.signal, answer);
      } catch (error) {
        if (await node.passes(error, o.signal)) continue;
        if (!(error instanceof ConnectionLostError)) throw asked !== undefined && isUnreachable(error) ? afterSending(error) : error;
        if (error.outcome === "unsent") continue;
        if (repeat === "never") throw error;
        asked = epoch;
      }
    }
  }

  /** For one request: whether it may be sent again because the node of a cluster that it is for could not be reached. */
  nodeWait(): { passes(error: unknown, signal?: AbortSignal): Promise<boolean> } {
    let end: number | undefined; // when our patience ends, from the first such answer on
    return {
      /** Waits as long as the server says; then nothing was done, and the request may be sent again. False: another error, or our patience is over. */
      passes: async (error, signal) => {
        if (!isUnreachable(error)) return false;
        const wait = Math.min(Math.max(Number(error.details.retry_after_ms) || firstPause, firstPause), lastPause);
        end ??= performance.now() + this.patience;
        if (performance.now() + wait > end) return false;
        await until(signal, pause(wait, this.closing.signal));
        return true; // a closed connection fails the request
      },
    };
  }

  /** Calls a listener for every event of this name. */
  on<E extends keyof wire.Events>(event: E, listener: (data: wire.Events[E]) => void): () => void {
    let set = this.listeners.get(event);
    if (!set) this.listeners.set(event, (set = new Set()));
    set.add(listener);
    return () => set.delete(listener);
  }

  /** Listens to a stream that no sink of a request gets, over all connections: a watched session sends streams that nobody attached. */
  follow(streamId: string, follower: Follower): () => void {
    this.followers.set(streamId, follower);
    return () => {
      if (this.followers.get(streamId) === follower) this.followers.delete(streamId);
    };
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    this.closing.abort(new ClosedError());
    this.heart?.stop();
    for (const sibling of this.siblings) void sibling.close();
    await this.link?.close();
    this.become({ kind: "closed", why: "closed" });
  }

  /** Another connection to the same gateway, for what must not wait for the streams of this one. It ends with this one at the latest. */
  sibling(onState: (state: ConnectionState) => void): Connection {
    const sibling = new Connection({ ...this.o, onState }, this.pace);
    if (this.closed) throw new ClosedError();
    sibling.epoch = this.epoch;
    sibling.until = performance.now() + this.patience; // the gateway may be away for a moment
    this.siblings.add(sibling);
    return sibling;
  }

  /** Ends a sibling. */
  async drop(sibling: Connection): Promise<void> {
    this.siblings.delete(sibling);
    await sibling.close();
  }

  private become(state: ConnectionState): void {
    calling(() => this.o.onState?.(state));
  }

  /** Makes one connection, and asks it for its epoch: something else than trl might listen at the address. */
  private async dial(signal: AbortSignal): Promise<Link> {
    const late = AbortSignal.timeout(dialTimeout);
    const both = AbortSignal.any([signal, late]);
    try {
      const ticket = await until(both, Promise.resolve(this.o.ticket?.()));
      const auth = ticket !== undefined ? [`trl.ticket.${ticket}`] : this.o.token !== undefined ? [tokenProtocol(this.o.token)] : [];
      const socket = await this.openSocket(["trl.v1+bin", "trl.v1", ...auth], both);
      const link = new Link(socket, (event, data) => this.tell(event, data), (dead) => this.lost(dead), (stream) => this.followers.get(stream));
      const heart = new Heartbeat(link, this.pace, this.pulse);
      try {
        this.epoch = await until(both, heart.ask());
        signal.throwIfAborted(); // closed at the last moment
      } catch (error) {
        link.abandon("the gateway does not answer");
        throw error;
      }
      this.link = link;
      this.heart = heart;
      heart.start();
      this.become({ kind: "up" });
      return link;
    } catch (error) {
      if (late.aborted && !signal.aborted) throw new ConnectionLostError("the gateway does not answer", "unsent");
      throw error;
    }
  }

  private openSocket(protocols: string[], signal: AbortSignal): Promise<WebSocket> {
    const Socket = this.o.WebSocket ?? globalThis.WebSocket;
    if (!Socket) throw new TypeError("this runtime has no WebSocket: pass one as connect({ WebSocket })");
    return new Promise((resolve, reject) => {
      const socket = new Socket(this.socketUrl, protocols);
      socket.binaryType = "arraybuffer";
      const quit = (error: unknown) => {
        socket.onopen = socket.onclose = null;
        socket.onerror = () => {}; // the class of `ws` throws an error that nobody listens to
        signal.removeEventListener("abort", abort);
        reject(error);
      };
      const abort = () => {
        quit(signal.reason);
        socket.close();
      };
      signal.addEventListener("abort", abort, { once: true });
      socket.onopen = () => {
        signal.removeEventListener("abort", abort);
        resolve(socket);
      };
      socket.onclose = socket.onerror = () => {
        quit(undefined);
      };
    }).catch(async (error: unknown) => {
      if (error) throw error;
      const why = await whyRefused(this.socketUrl, this.o.token, signal);
      throw why ?? new ConnectionLostError("the gateway cannot be reached", "unsent");
    }) as Promise<WebSocket>;
  }

  /** Starts to dial for a lost connection, or joins in. */
  private redial(): Promise<Link> {
    return (this.dialling ??= this.dialAgain().finally(() => (this.dialling = undefined)));
  }

  /** Dials until our patience ends, at least once. */
  private async dialAgain(): Promise<Link> {
    const { signal } = this.closing;
    const began = performance.now();
    const longest = () => (performance.now() - began < 60_000 ? lastPause : lastPauseOfLong);
    await this.rest(Math.min(this.wait, this.until - began));
    for (let attempt = 1, gap = Math.max(this.wait, firstPause); ; attempt++, gap = Math.min(2 * gap, longest())) {
      try {
        return await this.dial(signal);
      } catch (error) {
        if (this.closed) throw new ClosedError();
        const why = error instanceof Error ? error.message : String(error);
        if (this.isFinal(error) || performance.now() >= this.until) {
          if (this.isFinal(error)) this.failure = error as Error;
          this.become({ kind: "closed", why, attempt, ...(this.failure && { error: this.failure }) });
          throw error instanceof ConnectionLostError ? new ConnectionLostError(error.message, "unsent") : error;
        }
        const retryIn = Math.min(gap / 2 + (Math.random() * gap) / 2, this.until - performance.now());
        this.become({ kind: "down", why, attempt, retryIn });
        await this.rest(retryIn);
      }
    }
  }

  private rest(ms: number): Promise<void> {
    return pause(ms, AbortSignal.any([this.closing.signal, this.hurry.signal]));
  }

  /** Whether this end of a dial would come again. */
  private isFinal(error: unknown): boolean {
    if (error instanceof AuthError) return !this.o.ticket;
    if (error instanceof TrlError && error.code === "NOT_SUPPORTED") return this.epoch === ""; // a proxy answers for a gateway that was here before
    return error instanceof TrlError && !error.retryable;
  }

  private lost(link: Link): void {
    if (this.link !== link || this.closed) return;
    this.heart?.stop();
    const loss = link.loss!;
    const { why, code } = loss;
    if (loss.final && !(loss.code === 4401 && this.o.ticket)) {
      this.failure = loss.error ?? (loss.code === 4401 ? new AuthError(loss.why, "AUTH_FAILED") : new ConnectionLostError(loss.why, "unsent"));
      this.become({ kind: "closed", why, code, error: this.failure });
      return;
    }
    if (!this.noteLoss(link)) {
      this.become({ kind: "closed", why, code });
      return;
    }
    this.become({ kind: "down", why, code, attempt: 0, retryIn: this.wait });
    this.redial().catch(() => {}); // whoever needs the connection hears of it
  }

  /** Starts the time of our patience, or continues that of an earlier loss if the link brought nothing. False if no time is left. */
  private noteLoss(link: Link): boolean {
    const now = performance.now();
    const lived = now - link.since;
    if (this.until && !link.useful && lived < 1_000) {
      this.wait = Math.min(Math.max(2 * this.wait, afterUselessPause), lastPause);
      return now < this.until;
    }
    this.wait = lived < 1_000 ? afterUselessPause : 0;
    this.until = now + this.patience;
    this.missed = false;
    return true;
  }

  private tell(event: string, data: Record<string, unknown>): void {
    for (const listener of [...(this.listeners.get(event) ?? [])]) calling(() => listener(data as never));
  }
}

/** Calls a function of the program. What it throws must not disturb the connection; the runtime reports it like any uncaught error. */
function calling(f: () => void): void {
  try {
    f();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** The session's node could not be reached, and nothing was done. */
function isUnreachable(error: unknown): error is TrlError {
  return error instanceof TrlError && error.code === "NODE_UNREACHABLE";
}
