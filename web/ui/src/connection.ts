import { AuthError, Connection as Client, ConnectionLostError, type ConnectionState } from "./client";
import { at } from "./at";
import { guestToken } from "./guest";
import { Signal } from "./signal";
import type { Events, Methods } from "./wire";

export type Status =
  | { kind: "connecting" }
  | { kind: "up"; away: number } // away: ms since the last connection; 0 for the first one
  | { kind: "down"; since: number; attempt: number; retryAt: number; why: string } // why the connection was lost
  | { kind: "over"; why: string }; // the page does not dial again by itself

/** The reason of a gateway that announces its end. It does not say whether another one takes over its sessions. */
export const restarted = "the gateway is being restarted";
/** The gateway has lost its link to the node of a session, and closes the connection with linkLost. Nobody knows yet whether that node goes on. */
export const nodeLost = "the gateway has lost its link to the node of a session";
const linkLost = "connection to the session's node was lost";
/** A person waits for answers, so the page pings soon after the last message and soon reports silence. */
const pace = { tick: 250, askAfter: 1_000, askEvery: 5_000, quietAfter: 2_250, silence: 12_000 };

// The connection of the page. The client makes it again for as long as the page lives. Streams attach again by themselves; other users of the connection
// listen to its status and ask again when it is up. A request is sent once: the person decides whether to repeat it.
export class Connection {
  readonly status = new Signal<Status>();
  readonly latency = new Signal<number>(); // round-trip time in ms
  /** The time (ms) since the last byte while a ping has no answer; 0 when a byte has come again. */
  readonly quiet = new Signal<number>();
  /** The gateway's epoch has changed: the sessions that we knew are gone. In a cluster another node may have answered, and sessions have epochs of their own. */
  readonly lostEpoch = new Signal<string>();
  /** The node that answers, or whether the cluster's directory works, has changed. */
  readonly nodeChanged = new Signal<void>();
  node = ""; // the name of the node that answers; "": there is one node
  degraded = false; // the cluster's directory does not work
  now: Status = { kind: "connecting" };
  readonly client: Client;

  private epoch = "";
  private quietSince = 0; // 0: the gateway answers
  private downSince = 0; // 0: the connection is up, or has never been
  private downFor = ""; // why the connection was lost

  constructor() {
    this.client = new Client(
      { url: new URL(guestToken ? "/v1/ws" : at("v1/ws"), location.origin), token: guestToken || undefined, patience: Infinity, onState: (state) => this.became(state) },
      pace,
      {
        latency: (ms) => this.latency.emit(ms),
        pong: ({ node = "", degraded = false }) => {
          if (node === this.node && degraded === this.degraded) return;
          Object.assign(this, { node, degraded });
          this.nodeChanged.emit();
        },
        quiet: (ms) => {
          this.quietSince = ms && Date.now() - ms;
          this.quiet.emit(ms);
        },
      },
    );
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.retry();
    });
  }

  get up(): boolean {
    return this.now.kind === "up";
  }

  /** Dials for the first time, or goes to the login page. It asks for the login first, because browsers log a refused WebSocket as an error. */
  async begin(): Promise<void> {
    if (!guestToken && (await loggedOut())) location.replace("/login");
    else this.retry();
  }

  /** Dials now if there is no connection. */
  retry(): void {
    if (this.now.kind === "over") this.become({ kind: "connecting" });
    this.client.retry();
  }

  call<M extends keyof Methods>(method: M, params: Methods[M][0]): Promise<Methods[M][1]> {
    const link = this.client.current;
    return link ? link.call(method, params).answer : Promise.reject(new ConnectionLostError("not connected", "unsent"));
  }

  on<E extends keyof Events>(event: E, listener: (data: Events[E]) => void): () => void {
    return this.client.on(event, listener);
  }

  private become(status: Status): void {
    this.now = status;
    this.status.emit(status);
  }

  private became(state: ConnectionState): void {
    switch (state.kind) {
      case "up":
        this.cameBack();
        return;
      case "down":
        this.wentDown(state);
        return;
      case "closed":
        if (state.error instanceof AuthError && !guestToken) location.assign("/login");
        else this.become({ kind: "over", why: guestToken && state.error instanceof AuthError && !state.code ? "this link has expired or was revoked" : state.why! });
    }
  }

  private cameBack(): void {
    const { epoch } = this.client;
    const away = this.downSince ? Date.now() - this.downSince : 0;
    const other = this.epoch !== "" && this.epoch !== epoch && !this.node;
    this.epoch = epoch;
    this.downSince = 0;
    this.downFor = "";
    if (other) this.lostEpoch.emit(epoch);
    this.become({ kind: "up", away });
  }

  private wentDown({ why = "", code, attempt = 0, retryIn = 0 }: ConnectionState): void {
    const now = Date.now();
    this.downSince ||= this.quietSince || now; // the silence began earlier
    this.quietSince = 0;
    const words = why === linkLost ? nodeLost : code === 1001 || code === 1012 ? restarted : code === 1013 ? "the gateway is overloaded" : why;
    this.downFor ||= words;
    this.become({ kind: "down", since: this.downSince, attempt: attempt + 1, retryAt: now + retryIn, why: this.downFor });
  }
}

/** Without a login the server redirects from the page to the login page. */
async function loggedOut(): Promise<boolean> {
  try {
    return (await fetch(at(""), { method: "HEAD", redirect: "manual" })).type === "opaqueredirect";
  } catch {
    return false;
  }
}
