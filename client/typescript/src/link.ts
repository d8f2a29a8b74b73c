import { ClosedError, ConnectionLostError, refusal, TrlError } from "./errors.ts";
import { readChunk, readFrame, type Chunk } from "./frame.ts";
import { inputFrame } from "./inputframe.ts";
import type * as wire from "./wire.gen.ts";

/** What a stream's output goes to, in its order. */
export interface Follower {
  chunk(chunk: Chunk): void;
  gap(from: number, to: number): void;
}

/** What the output and the events of a stream go to that a request of ours opened or attached. */
export interface Sink extends Follower {
  /** The answer that opened or attached the stream; nothing of the stream came before. */
  opened(answer: Record<string, unknown>): void;
  /** Any other event of the stream; the last one is its exit. */
  event(name: string, data: Record<string, unknown>): void;
  /** The link died before the exit. */
  lost(): void;
  /** Another request has taken over the stream on this link: nothing more comes. */
  displaced(): void;
}

interface Call {
  method: string;
  sink: Sink | undefined;
  /** It was handed to a socket that was open. */
  sent: boolean;
  resolve(data: unknown): void;
  reject(error: Error): void;
}

interface Message {
  id?: number;
  ok?: boolean;
  data?: Record<string, unknown>;
  error?: wire.Error;
  event?: string;
}

/** How a link ended, and whether another one may be dialled. */
export interface Loss {
  code: number;
  why: string;
  final: boolean;
  /** What the server said of the connection. */
  error?: TrlError;
}

/** The server's default bound on a message (max_frame_bytes). It closes the connection for good on a larger one. */
const largestMessage = 4 << 20;
const socketOpen = 1; // WebSocket.OPEN

const closedByUs = 0; // instead of a close code
const exits = new Set(["exec.exit", "process.exit", "term.exit"]);

/**
 * One WebSocket: its requests in flight and its streams. It is open from the beginning and dies once; Connection makes the next one.
 */
export class Link {
  /** Why it died; undefined while it lives. */
  loss: Loss | undefined;
  /** Output has come, or an answer other than that of the first ping: the server did something for us. */
  useful = false;
  readonly since = performance.now();
  heardAt = performance.now();

  private nextId = 1;
  private readonly calls = new Map<number, Call>();
  private readonly streams = new Map<string, Sink>();
  private readonly numbers = new Map<number, string>(); // stream_no → stream_id
  private readonly numberOf = new Map<string, number>(); // stream_id → stream_no
  private readonly terminals = new Map<string, string>(); // term_id → stream_id
  private readonly left = new Map<string, () => void>(); // by stream_id: asks the server to send no more of a stream that was left
  private opening = 0; // requests in flight that have a sink

  constructor(
    private readonly socket: WebSocket,
    private readonly tell: (event: string, data: Record<string, unknown>) => void,
    private readonly died: (link: Link) => void,
    private readonly follower: (stream: string) => Follower | undefined, // of a stream without a sink
  ) {
    socket.onmessage = (message) => this.receive(message.data as string | ArrayBuffer);
    socket.onclose = (close) => this.die(lossOf(close));
    socket.onerror = () => this.die({ code: 1006, why: "it was cut off", final: false }); // some runtimes send no close after it
  }

  /**
   * Sends a request. The sink gets the stream that the answer names; it is in place before the stream's first frame. The id is for exec.cancel.
   */
  call<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"], sink?: Sink): { id: number; answer: Promise<wire.Methods[M]["result"]> } {
    const id = this.nextId++;
    const answer = new Promise<wire.Methods[M]["result"]>((resolve, reject) => {
      if (this.loss) {
        reject(this.lostError(false));
        return;
      }
      const text = JSON.stringify({ id, method, params });
      if (text.length > largestMessage / 3 && new TextEncoder().encode(text).length > largestMessage) {
        reject(new TrlError("the request is too large", "REQUEST_TOO_LARGE", {}, method));
        return;
      }
      // A socket that is closing drops what it is given, and its end comes soon.
      const sent = this.socket.readyState === socketOpen;
      this.calls.set(id, { method, sink, sent, resolve: resolve as (data: unknown) => void, reject });
      if (sink) this.opening++;
      if (sent) this.socket.send(text);
    });
    return { id, answer };
  }

  /** Sends a request whose answer does not matter. */
  send<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"]): void {
    this.call(method, params).answer.catch(() => {});
  }

  /** Sends input for a stream in a binary frame, which gets no answer. False: it was not sent, because this sink does not have the stream now. */
  sendInput(streamId: string, sink: Sink, offset: number, bytes: Uint8Array): boolean {
    const no = this.numberOf.get(streamId);
    if (this.loss || no === undefined || this.streams.get(streamId) !== sink || this.socket.readyState !== socketOpen) return false;
    this.socket.send(inputFrame(no, offset, bytes));
    return true;
  }

  /** Takes a sink off its stream, and has the server asked to send no more of it, unless another sink has the stream now. */
  leave(streamId: string, sink: Sink, detach: () => void): void {
    if (this.loss || this.streams.get(streamId) !== sink) return;
    this.forget(streamId);
    this.left.set(streamId, detach);
    this.detachLeft();
  }

  /** It waits while a request for a stream is in flight: that may be for a stream that was left, and the server must get it last. */
  private detachLeft(): void {
    if (this.opening > 0) return;
    const left = [...this.left.values()];
    this.left.clear();
    for (const detach of left) detach();
  }

  /** Ends the link. The promise resolves when the other side has said goodbye, or after a second. */
  close(): Promise<void> {
    const gone = new Promise<void>((resolve) => {
      const late = setTimeout(resolve, this.loss ? 0 : 1000);
      this.socket.onclose = this.socket.onerror = () => {
        clearTimeout(late);
        resolve();
      };
    });
    this.socket.close(1000);
    this.die({ code: closedByUs, why: "closed", final: true });
    return gone;
  }

  /** Gives up a socket that did not close by itself. */
  abandon(why: string): void {
    this.end({ code: 1006, why, final: false });
  }

  private end(loss: Loss): void {
    this.socket.onclose = null;
    this.socket.onerror = () => {}; // the class of `ws` throws an error that nobody listens to
    this.socket.close();
    this.die(loss);
  }

  private receive(data: string | ArrayBuffer): void {
    this.heardAt = performance.now();
    if (this.loss) return;
    if (typeof data !== "string") {
      const frame = readFrame(data);
      const id = frame && this.numbers.get(frame.no);
      if (frame && id !== undefined) this.deliver(id, frame.chunk);
      return;
    }
    let message: Message;
    try {
      message = JSON.parse(data) as Message;
    } catch {
      this.end({ code: 1006, why: "unintelligible message from the gateway", final: true }); // the same message would come again
      return;
    }
    const { stream_no: no, stream_id: stream } = opened(message.data);
    if (typeof no === "number" && typeof stream === "string") this.number(stream, no);
    if (message.event !== undefined) this.notify(message.event, message.data ?? {});
    else if (typeof message.id === "number") this.settle(message.id, message);
    else if (message.error) { // it concerns the connection, or a request that could not be read
      const error = refusal(message.error);
      this.end({ code: 1006, why: error.message, final: !error.retryable, error });
    }
  }

  private settle(id: number, message: Message): void {
    const call = this.calls.get(id);
    this.calls.delete(id);
    if (!call) return;
    if (call.sink) this.opening--;
    if (!message.ok) {
      call.reject(refusal(message.error ?? { code: "INTERNAL_ERROR", message: "a failure without an error" }, call.method));
      this.detachLeft();
      return;
    }
    const { stream_id: stream, term_id: terminal } = opened(message.data);
    if (call.sink && typeof stream === "string") {
      const before = this.streams.get(stream);
      this.left.delete(stream);
      this.streams.set(stream, call.sink);
      if (before && before !== call.sink) before.displaced(); // the server sends a stream once per connection
      if (typeof terminal === "string") this.terminals.set(terminal, stream);
      call.sink.opened(message.data!);
    } else if (this.nextId > 2) {
      this.useful = true; // not the first ping
    }
    call.resolve(message.data ?? {});
    this.detachLeft();
  }

  /** Notes the number of a stream in binary frames. An attach that is repeated may give another one. */
  private number(stream: string, no: number): void {
    this.numbers.delete(this.numberOf.get(stream)!);
    this.numberOf.set(stream, no);
    this.numbers.set(no, stream);
  }

  private forget(stream: string): void {
    this.streams.delete(stream);
    this.numbers.delete(this.numberOf.get(stream)!);
    this.numberOf.delete(stream);
    for (const [terminal, of] of this.terminals) if (of === stream) this.terminals.delete(terminal);
  }

  private notify(event: string, data: Record<string, unknown>): void {
    switch (event) {
      case "exec.output":
      case "process.output":
      case "term.output":
        this.deliver(data.stream_id as string, readChunk(data as unknown as wire.Output));
        return;
      case "stream.gap":
        this.followerOf(data.stream_id as string)?.gap(data.from as number, data.to as number);
        return;
      case "stream.started":
        return; // its number is known by now
    }
    const stream = (data.stream_id ?? this.numbers.get(data.stream_no as number) ?? this.terminals.get(data.term_id as string)) as string | undefined;
    const sink = stream === undefined ? undefined : this.streams.get(stream);
    if (stream !== undefined && exits.has(event)) this.forget(stream);
    sink?.event(event, data);
    this.tell(event, data);
  }

  private deliver(stream: string, chunk: Chunk): void {
    const follower = this.followerOf(stream);
    if (!follower) return;
    this.useful = true;
    follower.chunk(chunk);
  }

  private followerOf(stream: string): Follower | undefined {
    return this.streams.get(stream) ?? this.follower(stream);
  }

  private die(loss: Loss): void {
    if (this.loss) return;
    this.loss = loss;
    const calls = [...this.calls.values()];
    const sinks = [...this.streams.values()];
    this.calls.clear();
    this.streams.clear();
    this.died(this);
    for (const call of calls) call.reject(this.lostError(call.sent));
    for (const sink of sinks) sink.lost();
  }

  private lostError(sent: boolean): Error {
    const { why, code } = this.loss!;
    if (code === closedByUs) return new ClosedError();
    return new ConnectionLostError(`the connection was lost: ${why}`, sent ? "unknown" : "unsent");
  }
}

/** The part of a message's data that names a stream: the answer of session.create has it in `terminal`. */
function opened(data: Record<string, unknown> = {}): Record<string, unknown> {
  return typeof data.terminal === "object" && data.terminal ? (data.terminal as Record<string, unknown>) : data;
}

/** Close codes after which dialling again is useless (PROTOCOL.md, Closing). After 4401 another ticket may help. */
const finalCodes = new Set([1000, 1002, 1003, 1007, 1008, 1009, 1010]);

const isFinal = (code: number) => finalCodes.has(code) || (code >= 4000 && code < 5000);

function lossOf(close: CloseEvent): Loss {
  const words: Record<number, string> = {
    1001: "the gateway is going away",
    1006: "it was cut off",
    1012: "the gateway is being restarted",
    1013: "the gateway is overloaded",
    4401: "the credential has expired or was revoked",
    4403: "the gateway no longer allows this connection",
  };
  return { code: close.code, why: close.reason || words[close.code] || `closed with ${close.code}`, final: isFinal(close.code) };
}
