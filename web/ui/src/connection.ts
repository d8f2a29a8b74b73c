import { at } from "./at";
import { readChunk, readFrame, type Chunk } from "./frame";
import { guestProtocols, guestToken, linkEnded } from "./guest";
import { Signal } from "./signal";
import { Refusal, type Events, type Methods, type WireChunk } from "./wire";

export type Status =
  | { kind: "connecting" }
  | { kind: "up"; away: number } // ms since it was up last; 0 the first time
  | { kind: "down"; since: number; attempt: number; retryAt: number; why: string } // why: the cause
  | { kind: "over"; why: string }; // it will not dial again by itself

/** The listeners of one stream: they get its pieces in order, and the gaps between them. */
export interface StreamListener {
  chunk(chunk: Chunk): void;
  gap(from: number, to: number): void;
}

const dialTimeout = 10_000;
const pingEvery = 5_000;
const tickEvery = 250;
/** After this time without a byte the page sends a ping. */
const askAfter = 1_000;
/** After this many ticks without a byte, and with a ping on its way, the page says so. It counts ticks and not time, because a page that slept or was busy has received nothing either. */
const quietTicks = 9;
/** A server that has sent nothing for this time is gone or stopped. */
const silence = 12_000;
const firstRetry = 250;
const lastRetry = 15_000;
/** The reason of a gateway that announces its end. It does not say whether another one takes over its sessions. */
export const restarted = "the gateway is being restarted";
/** Close codes after which dialling again is useless: 1000 and 1008 are final, 44xx concerns our credentials. */
const finalCode = (code: number) => code === 1000 || code === 1008 || code >= 4000;

interface Waiting {
  resolve(data: unknown): void;
  reject(error: Refusal): void;
}

// The one WebSocket of the page. It dials for as long as the page lives. Its users (a stream at an offset, a watch) listen to its status and
// ask again when it is up.
export class Connection {
  readonly status = new Signal<Status>();
  readonly latency = new Signal<number>(); // ms there and back
  /** A ping has no answer: the time (ms) since the last byte; 0: a byte has come again. */
  readonly quiet = new Signal<number>();
  /** The gateway's epoch has changed: the sessions that we knew are gone. */
  readonly lostEpoch = new Signal<string>();
  now: Status = { kind: "connecting" };

  private socket: WebSocket | undefined;
  private epoch = "";
  private downSince = 0; // 0: it has never been up, or it is
  private downFor = ""; // why, then
  private attempt = 0;
  private nextId = 1;
  private heardAt = 0;
  private pingedAt = 0;
  private pinging = false;
  private ticks = 0; // since the last byte
  private pingTimer = 0;
  private retryTimer = 0;
  private readonly waiting = new Map<number, Waiting>();
  private readonly events = new Map<string, Signal<unknown>>();
  private readonly streams = new Map<string, Set<StreamListener>>();
  private readonly numbers = new Map<number, string>(); // stream_no of this socket → stream_id

  constructor(private readonly url: () => string) {
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.retry();
    });
  }

  get up(): boolean {
    return this.now.kind === "up";
  }

  /** Dials now, if it is not up and not already dialling. */
  retry(): void {
    if (this.now.kind === "down" || this.now.kind === "over") this.dial();
  }

  /** Dials for the first time. Without a login it goes to the login page instead. */
  async begin(): Promise<void> {
    if (!guestToken && (await loggedOut())) location.replace("/login");
    else this.dial();
  }

  dial(): void {
    clearTimeout(this.retryTimer);
    if (this.now.kind !== "down") this.become({ kind: "connecting" });
    const socket = new WebSocket(this.url(), ["trl.v1+bin", "trl.v1", ...guestProtocols()]);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    const late = setTimeout(() => this.fell(socket, "the gateway does not answer"), dialTimeout);
    socket.onopen = () => {
      this.heard();
      void this.greet(socket).finally(() => clearTimeout(late)); // a server that only listens may never answer
    };
    socket.onmessage = (message) => {
      this.heard();
      this.receive(message.data);
    };
    socket.onclose = (close) => {
      clearTimeout(late);
      void this.closed(socket, close);
    };
  }

  /** Sends a request; its answer, or the loss of the connection, settles the promise. */
  call<M extends keyof Methods>(method: M, params: Methods[M][0]): Promise<Methods[M][1]> {
    const socket = this.socket;
    if (!socket || socket.readyState !== WebSocket.OPEN) {
      return Promise.reject(new Refusal("OFFLINE", "not connected"));
    }
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (data: unknown) => void, reject });
      socket.send(JSON.stringify({ id, method, params }));
    });
  }

  on<E extends keyof Events>(event: E, listener: (data: Events[E]) => void): () => void {
    let signal = this.events.get(event);
    if (!signal) this.events.set(event, (signal = new Signal()));
    return signal.on(listener as (data: unknown) => void);
  }

  /** Listens to a stream, whoever requested it. */
  follow(streamId: string, listener: StreamListener): () => void {
    let set = this.streams.get(streamId);
    if (!set) this.streams.set(streamId, (set = new Set()));
    set.add(listener);
    return () => {
      set.delete(listener);
      if (set.size === 0 && this.streams.get(streamId) === set) this.streams.delete(streamId);
    };
  }

  private become(status: Status): void {
    this.now = status;
    this.status.emit(status);
  }

  /** The connection is up after the first answer: it has the epoch, and shows that more than a listener is behind the port. */
  private async greet(socket: WebSocket): Promise<void> {
    const epoch = await this.ping();
    if (epoch === undefined || this.socket !== socket) return;
    const away = this.downSince ? Date.now() - this.downSince : 0;
    const other = this.epoch !== "" && this.epoch !== epoch;
    this.epoch = epoch;
    this.downSince = 0;
    this.downFor = "";
    this.attempt = 0;
    clearInterval(this.pingTimer);
    this.pingTimer = setInterval(() => this.beat(socket), tickEvery);
    if (other) this.lostEpoch.emit(epoch);
    this.become({ kind: "up", away });
  }

  private heard(): void {
    this.heardAt = performance.now();
    if (this.ticks >= quietTicks) this.quiet.emit(0);
    this.ticks = 0;
  }

  private beat(socket: WebSocket): void {
    const since = performance.now() - this.heardAt;
    this.ticks++;
    if (!this.pinging) {
      this.ticks = Math.min(this.ticks, quietTicks - 1); // nobody was asked
      if (since >= askAfter || performance.now() - this.pingedAt >= pingEvery) void this.ping();
    } else if (this.ticks >= quietTicks && since > silence) this.fell(socket, "the gateway has gone silent");
    else if (this.ticks >= quietTicks) this.quiet.emit(since);
  }

  private async ping(): Promise<string | undefined> {
    const sent = (this.pingedAt = performance.now());
    this.pinging = true;
    try {
      const pong = await this.call("system.ping", {});
      this.latency.emit(performance.now() - sent);
      return pong.epoch;
    } catch {
      return undefined; // the close tells
    } finally {
      this.pinging = false;
    }
  }

  private receive(data: string | ArrayBuffer): void {
    if (data instanceof ArrayBuffer) {
      const frame = readFrame(data);
      const id = frame && this.numbers.get(frame.no);
      if (frame && id) this.deliver(id, frame.chunk);
      return;
    }
    const message = JSON.parse(data) as {
      id?: number;
      ok?: boolean;
      data?: Record<string, unknown>;
      error?: { code: string; message: string; details?: Record<string, unknown> };
      event?: string;
    };
    const numbered = message.data;
    if (typeof numbered?.stream_no === "number" && typeof numbered.stream_id === "string") {
      this.numbers.set(numbered.stream_no, numbered.stream_id);
    }
    if (message.event) this.tell(message.event, message.data ?? {});
    else if (message.id !== undefined) this.settle(message.id, message);
  }

  private settle(id: number, answer: { ok?: boolean; data?: unknown; error?: { code: string; message: string; details?: Record<string, unknown> } }): void {
    const waiting = this.waiting.get(id);
    this.waiting.delete(id);
    if (answer.ok) waiting?.resolve(answer.data);
    else waiting?.reject(new Refusal(answer.error?.code ?? "INTERNAL_ERROR", answer.error?.message ?? "refused", answer.error?.details));
  }

  private tell(event: string, data: Record<string, unknown>): void {
    switch (event) {
      case "exec.output":
      case "process.output":
      case "term.output":
        this.deliver(data.stream_id as string, readChunk(data as unknown as WireChunk));
        return;
      case "stream.gap":
        for (const listener of this.streams.get(data.stream_id as string) ?? []) listener.gap(data.from as number, data.to as number);
        return;
    }
    this.events.get(event)?.emit(data);
  }

  private deliver(streamId: string, chunk: Chunk): void {
    for (const listener of this.streams.get(streamId) ?? []) listener.chunk(chunk);
  }

  /** Gives up a socket that did not close by itself. */
  private fell(socket: WebSocket, why: string): void {
    if (this.socket !== socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    this.lost(why);
  }

  private async closed(socket: WebSocket, close: CloseEvent): Promise<void> {
    if (this.socket !== socket) return;
    this.socket = undefined; // requests fail from here on
    if (guestToken && this.now.kind !== "up" && (await linkEnded())) {
      this.forget();
      this.become({ kind: "over", why: "this link has expired or was revoked" });
      return;
    }
    if (guestToken ? false : close.code === 4401 || (this.now.kind !== "up" && (await loggedOut()))) {
      location.assign("/login");
      return;
    }
    if (finalCode(close.code)) {
      this.forget();
      this.become({ kind: "over", why: close.reason || `the gateway closed the connection (${close.code})` });
      return;
    }
    this.lost(closeWords(close));
  }

  private lost(why: string): void {
    const now = Date.now();
    this.downSince ||= this.ticks >= quietTicks ? now - (performance.now() - this.heardAt) : now; // it was away before this was known
    this.ticks = 0;
    this.forget();
    this.downFor ||= why;
    const pause = Math.min(lastRetry, firstRetry * 2 ** this.attempt) * (0.75 + Math.random() / 2); // many pages come back spread out over time
    this.attempt++;
    this.retryTimer = setTimeout(() => this.dial(), pause);
    this.become({ kind: "down", since: this.downSince, attempt: this.attempt, retryAt: now + pause, why: this.downFor });
  }

  private forget(): void {
    this.socket = undefined;
    clearInterval(this.pingTimer);
    this.numbers.clear();
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const w of waiting) w.reject(new Refusal("OFFLINE", "the connection was lost", { sent: true }));
  }
}

function closeWords(close: CloseEvent): string {
  switch (close.code) {
    case 1001:
    case 1012:
      return restarted;
    case 1013:
      return "the gateway is overloaded";
    default:
      return "it was cut off";
  }
}

/** A refused upgrade looks like any other failure. The login path shows the difference: without a login it redirects. */
async function loggedOut(): Promise<boolean> {
  try {
    return (await fetch(at(""), { method: "HEAD", redirect: "manual" })).type === "opaqueredirect";
  } catch {
    return false;
  }
}
