// src/abort.ts
function until(signal, promise) {
  if (!signal) return promise;
  if (signal.aborted) {
    promise.catch(() => {
    });
    return Promise.reject(signal.reason);
  }
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
function pause(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, Math.max(0, ms));
    if (signal?.aborted) done();
    else signal?.addEventListener("abort", done, { once: true });
  });
}

// src/errors.ts
var TrlError = class extends Error {
  constructor(message, code, details = {}, method) {
    super(message);
    this.code = code;
    this.details = details;
    this.method = method;
  }
  code;
  details;
  method;
  name = "TrlError";
  /** The same request may succeed later. */
  get retryable() {
    switch (this.code) {
      case "RATE_LIMITED":
      case "SHUTTING_DOWN":
      case "SESSION_BUSY":
      case "NODE_UNREACHABLE":
      case "DIRECTORY_UNAVAILABLE":
        return true;
      case "LIMIT_EXCEEDED":
        return this.details.limit === "stdin" || this.details.limit === "connections";
      default:
        return false;
    }
  }
};
var AuthError = class extends TrlError {
  name = "AuthError";
};
var ForbiddenError = class extends TrlError {
  name = "ForbiddenError";
};
var InvalidParamsError = class extends TrlError {
  name = "InvalidParamsError";
  /** The parameter, by its name on the wire. */
  get field() {
    return String(this.details.field ?? "");
  }
};
var SessionNotFoundError = class extends TrlError {
  name = "SessionNotFoundError";
};
var SessionExistsError = class extends TrlError {
  name = "SessionExistsError";
};
var SessionBusyError = class extends TrlError {
  name = "SessionBusyError";
  /** The command that runs. */
  get execId() {
    return this.details.exec_id;
  }
};
var SessionTerminatedError = class extends TrlError {
  name = "SessionTerminatedError";
  get reason() {
    return String(this.details.reason ?? (this.code === "SESSION_LOST" ? "lost" : ""));
  }
};
var LimitError = class extends TrlError {
  name = "LimitError";
  get limit() {
    return String(this.details.limit ?? "");
  }
};
var NotFoundError = class extends TrlError {
  name = "NotFoundError";
};
var ConnectionLostError = class extends Error {
  constructor(message, outcome, options) {
    super(message, options);
    this.outcome = outcome;
  }
  outcome;
  name = "ConnectionLostError";
};
function afterSending(error) {
  if (!(error instanceof ConnectionLostError || error instanceof TrlError)) return error;
  return new ConnectionLostError(error.message, "unknown", { cause: error });
}
var ClosedError = class extends Error {
  name = "ClosedError";
  constructor(message = "the client is closed") {
    super(message);
  }
};
var CommandError = class extends Error {
  constructor(result) {
    super(`${result.command}: ${result.signal ? `ended by ${result.signal}` : `exit code ${result.exitCode}`}${result.timedOut ? " after its time limit" : ""}`);
    this.result = result;
    const { success, exitCode, stdout, stderr, command, duration, timedOut } = result;
    Object.assign(this, { success, exitCode, stdout, stderr, command, duration, timedOut });
  }
  result;
  name = "CommandError";
};
var OutcomeUnknownError = class extends TrlError {
  name = "OutcomeUnknownError";
};
var ProcessReadyTimeoutError = class extends Error {
  constructor(processId, condition, timeout) {
    super(`${condition}: not within ${timeout} ms`);
    this.processId = processId;
    this.timeout = timeout;
  }
  processId;
  timeout;
  name = "ProcessReadyTimeoutError";
};
var ProcessExitedBeforeReadyError = class extends Error {
  constructor(processId, condition, exitCode, tail) {
    super(`${condition}: the process ended before, with exit code ${exitCode ?? "unknown"}${tail && `
${tail}`}`);
    this.processId = processId;
    this.exitCode = exitCode;
    this.tail = tail;
  }
  processId;
  exitCode;
  tail;
  name = "ProcessExitedBeforeReadyError";
};
var classes = {
  AUTH_FAILED: AuthError,
  FORBIDDEN: ForbiddenError,
  INVALID_PARAMS: InvalidParamsError,
  SESSION_NOT_FOUND: SessionNotFoundError,
  SESSION_EXISTS: SessionExistsError,
  SESSION_BUSY: SessionBusyError,
  SESSION_TERMINATED: SessionTerminatedError,
  SESSION_LOST: SessionTerminatedError,
  LIMIT_EXCEEDED: LimitError,
  MAX_SESSIONS_REACHED: LimitError,
  EXEC_NOT_FOUND: NotFoundError,
  PROCESS_NOT_FOUND: NotFoundError,
  TERM_NOT_FOUND: NotFoundError,
  STREAM_NOT_FOUND: NotFoundError,
  SHARE_NOT_FOUND: NotFoundError,
  RECORDING_NOT_FOUND: NotFoundError
};
function refusal(e, method) {
  return new (classes[e.code] ?? TrlError)(e.message, e.code, e.details ?? {}, method);
}

// src/address.ts
function endpoint(raw) {
  const url = new URL(raw);
  const scheme = { "http:": "ws:", "https:": "wss:", "ws:": "ws:", "wss:": "wss:" }[url.protocol];
  if (!scheme) throw new TypeError(`${raw}: want http://HOST:PORT or https://HOST:PORT`);
  const path = url.pathname === "/" ? "/v1/ws" : url.pathname;
  return new URL(`${scheme}//${url.host}${path}`);
}
function tokenProtocol(token) {
  const bytes = new TextEncoder().encode(token);
  const base64 = btoa(String.fromCharCode(...bytes));
  return `trl.token.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}
async function whyRefused(socket, token, signal) {
  const url = new URL(socket);
  url.protocol = url.protocol === "wss:" ? "https:" : "http:";
  let answer;
  let words;
  try {
    answer = await fetch(url, { headers: token === void 0 ? {} : { Authorization: `Bearer ${token}` }, signal });
    words = (await answer.text()).trim();
  } catch {
    return void 0;
  }
  switch (answer.status) {
    case 401:
      return new AuthError(words || "the server does not know this token", "AUTH_FAILED");
    case 403:
    case 421:
      return new ForbiddenError(words || "the server refuses this client", "FORBIDDEN");
    case 200:
    case 404:
      return new TrlError("there is no trl gateway at this address", "NOT_SUPPORTED");
    case 429:
    case 503:
      if (words.startsWith("too many wrong tokens")) return new TrlError(words, "RATE_LIMITED");
      if (words.startsWith("too many connections")) return new LimitError(words, "LIMIT_EXCEEDED", { limit: "connections" });
  }
  return void 0;
}

// src/heartbeat.ts
var defaultPace = { tick: 5e3, askAfter: 2e4, askEvery: Infinity, quietAfter: 25e3, silence: 45e3 };
var Heartbeat = class {
  // that it is quiet
  constructor(link, pace, pulse = {}) {
    this.link = link;
    this.pace = pace;
    this.pulse = pulse;
    this.heardAt = link.heardAt;
  }
  link;
  pace;
  pulse;
  timer;
  ticks = 0;
  // since the last message
  heardAt;
  askedAt = 0;
  asking = false;
  told = false;
  /** Sends a ping and answers with the epoch of the server. */
  async ask() {
    const sent = this.askedAt = performance.now();
    this.asking = true;
    try {
      const pong = await this.link.call("system.ping", {}).answer;
      this.pulse.latency?.(performance.now() - sent);
      this.pulse.pong?.(pong);
      return pong.epoch;
    } finally {
      this.asking = false;
    }
  }
  start() {
    this.timer = setInterval(() => this.beat(), this.pace.tick);
  }
  stop() {
    clearInterval(this.timer);
  }
  beat() {
    const now2 = performance.now();
    const since = now2 - this.link.heardAt;
    const quietTicks = Math.ceil(this.pace.quietAfter / this.pace.tick);
    this.ticks++;
    if (this.heardAt !== this.link.heardAt) {
      this.heardAt = this.link.heardAt;
      this.ticks = 0;
      if (this.told) this.pulse.quiet?.(0);
      this.told = false;
    }
    if (!this.asking) {
      this.ticks = Math.min(this.ticks, quietTicks - 1);
      if (since >= this.pace.askAfter || now2 - this.askedAt >= this.pace.askEvery) this.ask().catch(() => {
      });
    } else if (this.ticks >= quietTicks && since > this.pace.silence) this.link.abandon("the gateway has gone silent");
    else if (this.ticks >= quietTicks) {
      this.told = true;
      this.pulse.quiet?.(since);
    }
  }
};

// src/frame.ts
var kinds = ["", "stdout", "stderr", "tty"];
var replayFlag = 16;
var snapshotFlag = 32;
function readFrame(buffer) {
  const all = new Uint8Array(buffer);
  let at = 1;
  const uvarint = () => {
    let value = 0;
    for (let scale = 1; at < all.length; scale *= 128) {
      const byte = all[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    return NaN;
  };
  const kind = all[0] ?? 0;
  const stream = kinds[kind & 15];
  const no = uvarint();
  const offset = uvarint();
  if (!stream || Number.isNaN(offset)) return void 0;
  return { no, chunk: { offset, stream, bytes: all.subarray(at), replay: (kind & replayFlag) !== 0, snapshot: (kind & snapshotFlag) !== 0 } };
}
function readChunk(data) {
  const { offset, stream, replay = false, snapshot = false } = data;
  return { offset, stream, bytes: decodeBytes(data.data, data.encoding), replay, snapshot };
}
function beyond(chunk, next) {
  if (chunk.snapshot || chunk.offset >= next) return chunk;
  if (chunk.offset + chunk.bytes.length <= next) return void 0;
  return { ...chunk, offset: next, bytes: chunk.bytes.subarray(next - chunk.offset) };
}
function endOf(chunk) {
  return chunk.snapshot ? chunk.offset : chunk.offset + chunk.bytes.length;
}
var Position = class {
  /** Everything before it has come, or is missing. */
  constructor(next = 0) {
    this.next = next;
  }
  next;
  /** The new part of a piece, if it has one. */
  take(chunk) {
    const rest = beyond(chunk, this.next);
    if (rest) this.next = endOf(rest);
    return rest;
  }
  /** The new part of a gap, if it has one. */
  skip(from, to) {
    if (to <= this.next) return void 0;
    const rest = { from: Math.max(from, this.next), to };
    this.next = to;
    return rest;
  }
  /** A follower that hands on what is new. */
  filter(to) {
    return {
      chunk: (chunk) => {
        const rest = this.take(chunk);
        if (rest) to.chunk(rest);
      },
      gap: (from, end) => {
        const rest = this.skip(from, end);
        if (rest) to.gap(rest.from, rest.to);
      }
    };
  }
};
function concat(pieces) {
  const all = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
var encoder = new TextEncoder();
function toBytes(data) {
  return typeof data === "string" ? encoder.encode(data) : data;
}
function decodeBytes(text, encoding) {
  if (encoding !== "base64") return toBytes(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
function toBase64(bytes) {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 32768) binary += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(binary);
}
var strictText = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
var smallText = 128 << 10;
function encodeBytes(bytes) {
  try {
    const data = strictText.decode(bytes);
    if (bytes.length <= smallText || JSON.stringify(data).length <= 1.5 * bytes.length) return { data };
  } catch {
  }
  return { data: toBase64(bytes), encoding: "base64" };
}

// src/inputframe.ts
var inputKind = 4;
function inputFrame(no, offset, bytes) {
  const head = [inputKind];
  for (let value of [no, offset]) {
    for (; value >= 128; value = Math.floor(value / 128)) head.push(value % 128 | 128);
    head.push(value);
  }
  const frame = new Uint8Array(head.length + bytes.length);
  frame.set(head);
  frame.set(bytes, head.length);
  return frame;
}

// src/link.ts
var largestMessage = 4 << 20;
var socketOpen = 1;
var closedByUs = 0;
var exits = /* @__PURE__ */ new Set(["exec.exit", "process.exit", "term.exit"]);
var Link = class {
  // requests in flight that have a sink
  constructor(socket, tell, died, follower) {
    this.socket = socket;
    this.tell = tell;
    this.died = died;
    this.follower = follower;
    socket.onmessage = (message) => this.receive(message.data);
    socket.onclose = (close) => this.die(lossOf(close));
    socket.onerror = () => this.die({ code: 1006, why: "it was cut off", final: false });
  }
  socket;
  tell;
  died;
  follower;
  /** Why it died; undefined while it lives. */
  loss;
  /** Output has come, or an answer other than that of the first ping: the server did something for us. */
  useful = false;
  since = performance.now();
  heardAt = performance.now();
  nextId = 1;
  calls = /* @__PURE__ */ new Map();
  streams = /* @__PURE__ */ new Map();
  numbers = /* @__PURE__ */ new Map();
  // stream_no → stream_id
  numberOf = /* @__PURE__ */ new Map();
  // stream_id → stream_no
  terminals = /* @__PURE__ */ new Map();
  // term_id → stream_id
  left = /* @__PURE__ */ new Map();
  // by stream_id: asks the server to send no more of a stream that was left
  opening = 0;
  /**
   * Sends a request. The sink gets the stream that the answer names; it is in place before the stream's first frame. The id is for exec.cancel.
   */
  call(method, params, sink) {
    const id = this.nextId++;
    const answer = new Promise((resolve, reject) => {
      if (this.loss) {
        reject(this.lostError(false));
        return;
      }
      const text = JSON.stringify({ id, method, params });
      if (text.length > largestMessage / 3 && new TextEncoder().encode(text).length > largestMessage) {
        reject(new TrlError("the request is too large", "REQUEST_TOO_LARGE", {}, method));
        return;
      }
      const sent = this.socket.readyState === socketOpen;
      this.calls.set(id, { method, sink, sent, resolve, reject });
      if (sink) this.opening++;
      if (sent) this.socket.send(text);
    });
    return { id, answer };
  }
  /** Sends a request whose answer does not matter. */
  send(method, params) {
    this.call(method, params).answer.catch(() => {
    });
  }
  /** Sends input for a stream in a binary frame, which gets no answer. False: it was not sent, because this sink does not have the stream now. */
  sendInput(streamId, sink, offset, bytes) {
    const no = this.numberOf.get(streamId);
    if (this.loss || no === void 0 || this.streams.get(streamId) !== sink || this.socket.readyState !== socketOpen) return false;
    this.socket.send(inputFrame(no, offset, bytes));
    return true;
  }
  /** Takes a sink off its stream, and has the server asked to send no more of it, unless another sink has the stream now. */
  leave(streamId, sink, detach) {
    if (this.loss || this.streams.get(streamId) !== sink) return;
    this.forget(streamId);
    this.left.set(streamId, detach);
    this.detachLeft();
  }
  /** It waits while a request for a stream is in flight: that may be for a stream that was left, and the server must get it last. */
  detachLeft() {
    if (this.opening > 0) return;
    const left = [...this.left.values()];
    this.left.clear();
    for (const detach of left) detach();
  }
  /** Ends the link. The promise resolves when the other side has said goodbye, or after a second. */
  close() {
    const gone = new Promise((resolve) => {
      const late = setTimeout(resolve, this.loss ? 0 : 1e3);
      this.socket.onclose = this.socket.onerror = () => {
        clearTimeout(late);
        resolve();
      };
    });
    this.socket.close(1e3);
    this.die({ code: closedByUs, why: "closed", final: true });
    return gone;
  }
  /** Gives up a socket that did not close by itself. */
  abandon(why) {
    this.end({ code: 1006, why, final: false });
  }
  end(loss) {
    this.socket.onclose = null;
    this.socket.onerror = () => {
    };
    this.socket.close();
    this.die(loss);
  }
  receive(data) {
    this.heardAt = performance.now();
    if (this.loss) return;
    if (typeof data !== "string") {
      const frame = readFrame(data);
      const id = frame && this.numbers.get(frame.no);
      if (frame && id !== void 0) this.deliver(id, frame.chunk);
      return;
    }
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      this.end({ code: 1006, why: "unintelligible message from the gateway", final: true });
      return;
    }
    const { stream_no: no, stream_id: stream } = opened(message.data);
    if (typeof no === "number" && typeof stream === "string") this.number(stream, no);
    if (message.event !== void 0) this.notify(message.event, message.data ?? {});
    else if (typeof message.id === "number") this.settle(message.id, message);
    else if (message.error) {
      const error = refusal(message.error);
      this.end({ code: 1006, why: error.message, final: !error.retryable, error });
    }
  }
  settle(id, message) {
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
      if (before && before !== call.sink) before.displaced();
      if (typeof terminal === "string") this.terminals.set(terminal, stream);
      call.sink.opened(message.data);
    } else if (this.nextId > 2) {
      this.useful = true;
    }
    call.resolve(message.data ?? {});
    this.detachLeft();
  }
  /** Notes the number of a stream in binary frames. An attach that is repeated may give another one. */
  number(stream, no) {
    this.numbers.delete(this.numberOf.get(stream));
    this.numberOf.set(stream, no);
    this.numbers.set(no, stream);
  }
  forget(stream) {
    this.streams.delete(stream);
    this.numbers.delete(this.numberOf.get(stream));
    this.numberOf.delete(stream);
    for (const [terminal, of] of this.terminals) if (of === stream) this.terminals.delete(terminal);
  }
  notify(event, data) {
    switch (event) {
      case "exec.output":
      case "process.output":
      case "term.output":
        this.deliver(data.stream_id, readChunk(data));
        return;
      case "stream.gap":
        this.followerOf(data.stream_id)?.gap(data.from, data.to);
        return;
      case "stream.started":
        return;
    }
    const stream = data.stream_id ?? this.numbers.get(data.stream_no) ?? this.terminals.get(data.term_id);
    const sink = stream === void 0 ? void 0 : this.streams.get(stream);
    if (stream !== void 0 && exits.has(event)) this.forget(stream);
    sink?.event(event, data);
    this.tell(event, data);
  }
  deliver(stream, chunk) {
    const follower = this.followerOf(stream);
    if (!follower) return;
    this.useful = true;
    follower.chunk(chunk);
  }
  followerOf(stream) {
    return this.streams.get(stream) ?? this.follower(stream);
  }
  die(loss) {
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
  lostError(sent) {
    const { why, code } = this.loss;
    if (code === closedByUs) return new ClosedError();
    return new ConnectionLostError(`the connection was lost: ${why}`, sent ? "unknown" : "unsent");
  }
};
function opened(data = {}) {
  return typeof data.terminal === "object" && data.terminal ? data.terminal : data;
}
var finalCodes = /* @__PURE__ */ new Set([1e3, 1002, 1003, 1007, 1008, 1009, 1010]);
var isFinal = (code) => finalCodes.has(code) || code >= 4e3 && code < 5e3;
function lossOf(close) {
  const words = {
    1001: "the gateway is going away",
    1006: "it was cut off",
    1012: "the gateway is being restarted",
    1013: "the gateway is overloaded",
    4401: "the credential has expired or was revoked",
    4403: "the gateway no longer allows this connection"
  };
  return { code: close.code, why: close.reason || words[close.code] || `closed with ${close.code}`, final: isFinal(close.code) };
}

// src/repeat.gen.ts
var repeats = {
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
  "system.capabilities": "always"
};

// src/connection.ts
var dialTimeout = 1e4;
var firstPause = 50;
var lastPause = 4e3;
var lastPauseOfLong = 15e3;
var afterUselessPause = 250;
function repeatOf(method, params) {
  const repeat = Object.hasOwn(repeats, method) ? repeats[method] : "never";
  const { session_id, request_key, exec_id, process_id, signal } = params;
  if (repeat === "keyed") return request_key && (session_id || method === "session.create") ? "keyed" : "never";
  if (repeat === "end") return (exec_id || process_id) && !signal ? "always" : "never";
  return repeat;
}
var Connection = class _Connection {
  constructor(o, pace = defaultPace, pulse = {}) {
    this.o = o;
    this.pace = pace;
    this.pulse = pulse;
    this.socketUrl = endpoint(o.url);
    this.patience = o.patience ?? 45e3;
  }
  o;
  pace;
  pulse;
  /** Of the server at the last dial: another one means that the sessions of before are gone. */
  epoch = "";
  socketUrl;
  patience;
  link;
  dialling;
  until = 0;
  // when our patience ends, by performance.now()
  missed = false;
  // somebody has needed a connection since the last useful one was lost
  wait = 0;
  // before the next dial
  closed = false;
  failure;
  // no other dial will help
  closing = new AbortController();
  listeners = /* @__PURE__ */ new Map();
  followers = /* @__PURE__ */ new Map();
  heart;
  hurry = new AbortController();
  // ends the pause before the next dial
  siblings = /* @__PURE__ */ new Set();
  /** Dials for the first time. */
  async open(signal) {
    signal?.throwIfAborted();
    this.dialling = this.dial(signal ? AbortSignal.any([signal, this.closing.signal]) : this.closing.signal).finally(() => this.dialling = void 0);
    await this.dialling;
  }
  /** Dials now, for another time of our patience, if there is no connection: also after an end that seemed to be final. */
  retry() {
    if (this.closed || this.current) return;
    this.failure = void 0;
    this.until = performance.now() + this.patience;
    this.hurry.abort();
    this.hurry = new AbortController();
    this.redial().catch(() => {
    });
  }
  /** A live link. It waits for one that is being dialled. */
  async connected(signal) {
    for (; ; ) {
      if (this.closed) throw new ClosedError();
      if (this.link && !this.link.loss) return this.link;
      if (this.failure) throw this.failure;
      this.miss();
      await until(signal, this.dialling ?? this.redial());
    }
  }
  /** Somebody needs a connection. The time of our patience counts from the first time, because until then nobody waited. */
  miss() {
    if (this.missed || !this.link) return;
    this.missed = true;
    this.until = performance.now() + this.patience;
  }
  /** The live link, if there is one now. */
  get current() {
    return this.link?.loss ? void 0 : this.link;
  }
  /**
   * Sends a request, and again if the connection is lost before the answer and that does no harm. A keyed request is not repeated in another epoch: the
   * new server knows neither its key nor its session.
   */
  async call(method, params, o = {}) {
    o.signal?.throwIfAborted();
    let asked;
    let repeat = "never";
    const node = this.nodeWait();
    for (; ; ) {
      let link;
      try {
        link = this.current ?? await this.connected(o.signal);
      } catch (error) {
        throw asked === void 0 || repeat === "always" && error instanceof TrlError ? error : afterSending(error);
      }
      const { epoch } = this;
      if (asked !== void 0 && asked !== epoch && repeat === "keyed") {
        throw new ConnectionLostError(`${method}: the server was started anew before it answered`, "unknown");
      }
      const now2 = typeof params === "function" ? params() : params;
      repeat = o.repeat ?? repeatOf(method, now2);
      const { id, answer } = link.call(method, now2, o.sink);
      o.sent?.(link, id);
      try {
        return await until(o.signal, answer);
      } catch (error) {
        if (await node.passes(error, o.signal)) continue;
        if (!(error instanceof ConnectionLostError)) throw asked !== void 0 && isUnreachable(error) ? afterSending(error) : error;
        if (error.outcome === "unsent") continue;
        if (repeat === "never") throw error;
        asked = epoch;
      }
    }
  }
  /** For one request: whether it may be sent again because the node of a cluster that it is for could not be reached. */
  nodeWait() {
    let end;
    return {
      /** Waits as long as the server says; then nothing was done, and the request may be sent again. False: another error, or our patience is over. */
      passes: async (error, signal) => {
        if (!isUnreachable(error)) return false;
        const wait = Math.min(Math.max(Number(error.details.retry_after_ms) || firstPause, firstPause), lastPause);
        end ??= performance.now() + this.patience;
        if (performance.now() + wait > end) return false;
        await until(signal, pause(wait, this.closing.signal));
        return true;
      }
    };
  }
  /** Calls a listener for every event of this name. */
  on(event, listener) {
    let set = this.listeners.get(event);
    if (!set) this.listeners.set(event, set = /* @__PURE__ */ new Set());
    set.add(listener);
    return () => set.delete(listener);
  }
  /** Listens to a stream that no sink of a request gets, over all connections: a watched session sends streams that nobody attached. */
  follow(streamId, follower) {
    this.followers.set(streamId, follower);
    return () => {
      if (this.followers.get(streamId) === follower) this.followers.delete(streamId);
    };
  }
  async close() {
    if (this.closed) return;
    this.closed = true;
    this.closing.abort(new ClosedError());
    this.heart?.stop();
    for (const sibling of this.siblings) void sibling.close();
    await this.link?.close();
    this.become({ kind: "closed", why: "closed" });
  }
  /** Another connection to the same gateway, for what must not wait for the streams of this one. It ends with this one at the latest. */
  sibling(onState) {
    const sibling = new _Connection({ ...this.o, onState }, this.pace);
    if (this.closed) throw new ClosedError();
    sibling.epoch = this.epoch;
    sibling.until = performance.now() + this.patience;
    this.siblings.add(sibling);
    return sibling;
  }
  /** Ends a sibling. */
  async drop(sibling) {
    this.siblings.delete(sibling);
    await sibling.close();
  }
  become(state) {
    calling(() => this.o.onState?.(state));
  }
  /** Makes one connection, and asks it for its epoch: something else than trl might listen at the address. */
  async dial(signal) {
    const late = AbortSignal.timeout(dialTimeout);
    const both = AbortSignal.any([signal, late]);
    try {
      const ticket = await until(both, Promise.resolve(this.o.ticket?.()));
      const auth = ticket !== void 0 ? [`trl.ticket.${ticket}`] : this.o.token !== void 0 ? [tokenProtocol(this.o.token)] : [];
      const socket = await this.openSocket(["trl.v1+bin", "trl.v1", ...auth], both);
      const link = new Link(socket, (event, data) => this.tell(event, data), (dead) => this.lost(dead), (stream) => this.followers.get(stream));
      const heart = new Heartbeat(link, this.pace, this.pulse);
      try {
        this.epoch = await until(both, heart.ask());
        signal.throwIfAborted();
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
  openSocket(protocols, signal) {
    const Socket = this.o.WebSocket ?? globalThis.WebSocket;
    if (!Socket) throw new TypeError("this runtime has no WebSocket: pass one as connect({ WebSocket })");
    return new Promise((resolve, reject) => {
      const socket = new Socket(this.socketUrl, protocols);
      socket.binaryType = "arraybuffer";
      const quit = (error) => {
        socket.onopen = socket.onclose = null;
        socket.onerror = () => {
        };
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
        quit(void 0);
      };
    }).catch(async (error) => {
      if (error) throw error;
      const why = await whyRefused(this.socketUrl, this.o.token, signal);
      throw why ?? new ConnectionLostError("the gateway cannot be reached", "unsent");
    });
  }
  /** Starts to dial for a lost connection, or joins in. */
  redial() {
    return this.dialling ??= this.dialAgain().finally(() => this.dialling = void 0);
  }
  /** Dials until our patience ends, at least once. */
  async dialAgain() {
    const { signal } = this.closing;
    const began = performance.now();
    const longest = () => performance.now() - began < 6e4 ? lastPause : lastPauseOfLong;
    await this.rest(Math.min(this.wait, this.until - began));
    for (let attempt = 1, gap = Math.max(this.wait, firstPause); ; attempt++, gap = Math.min(2 * gap, longest())) {
      try {
        return await this.dial(signal);
      } catch (error) {
        if (this.closed) throw new ClosedError();
        const why = error instanceof Error ? error.message : String(error);
        if (this.isFinal(error) || performance.now() >= this.until) {
          if (this.isFinal(error)) this.failure = error;
          this.become({ kind: "closed", why, attempt, ...this.failure && { error: this.failure } });
          throw error instanceof ConnectionLostError ? new ConnectionLostError(error.message, "unsent") : error;
        }
        const retryIn = Math.min(gap / 2 + Math.random() * gap / 2, this.until - performance.now());
        this.become({ kind: "down", why, attempt, retryIn });
        await this.rest(retryIn);
      }
    }
  }
  rest(ms) {
    return pause(ms, AbortSignal.any([this.closing.signal, this.hurry.signal]));
  }
  /** Whether this end of a dial would come again. */
  isFinal(error) {
    if (error instanceof AuthError) return !this.o.ticket;
    if (error instanceof TrlError && error.code === "NOT_SUPPORTED") return this.epoch === "";
    return error instanceof TrlError && !error.retryable;
  }
  lost(link) {
    if (this.link !== link || this.closed) return;
    this.heart?.stop();
    const loss = link.loss;
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
    this.redial().catch(() => {
    });
  }
  /** Starts the time of our patience, or continues that of an earlier loss if the link brought nothing. False if no time is left. */
  noteLoss(link) {
    const now2 = performance.now();
    const lived = now2 - link.since;
    if (this.until && !link.useful && lived < 1e3) {
      this.wait = Math.min(Math.max(2 * this.wait, afterUselessPause), lastPause);
      return now2 < this.until;
    }
    this.wait = lived < 1e3 ? afterUselessPause : 0;
    this.until = now2 + this.patience;
    this.missed = false;
    return true;
  }
  tell(event, data) {
    for (const listener of [...this.listeners.get(event) ?? []]) calling(() => listener(data));
  }
};
function calling(f) {
  try {
    f();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
function isUnreachable(error) {
  return error instanceof TrlError && error.code === "NODE_UNREACHABLE";
}

// src/quote.ts
function commandLine(command) {
  return typeof command === "string" ? command : command.map(quote).join(" ");
}
function quote(word) {
  return /^[\w@%+:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

// src/text.ts
var Text = class {
  decoders = /* @__PURE__ */ new Map();
  /** The text of these bytes, as far as it is complete. */
  add(channel, bytes) {
    let decoder = this.decoders.get(channel);
    if (!decoder) this.decoders.set(channel, decoder = new TextDecoder("utf-8", { ignoreBOM: true }));
    return decoder.decode(bytes, { stream: true });
  }
  /** What is left of a channel when nothing follows: U+FFFD for a character that was cut off. */
  end(channel) {
    const rest = this.decoders.get(channel)?.decode() ?? "";
    this.decoders.delete(channel);
    return rest;
  }
};
var wholeText = new TextDecoder("utf-8", { ignoreBOM: true });
function textOf(bytes) {
  return wholeText.decode(bytes);
}

// src/exec.ts
function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return toBase64(crypto.getRandomValues(new Uint8Array(18)));
}
function seconds(ms) {
  return ms === void 0 ? void 0 : ms / 1e3;
}
function wireEnv(env) {
  if (!env) return void 0;
  const set = {};
  for (const [name, value] of Object.entries(env)) if (value !== void 0) set[name] = value;
  return set;
}
function execParams(sessionId, command, o) {
  const stdin = o.stdin === void 0 ? void 0 : encodeBytes(toBytes(o.stdin));
  return {
    session_id: sessionId,
    command: commandLine(command),
    working_dir: o.cwd,
    env: wireEnv(o.env),
    timeout_s: seconds(o.timeout),
    no_output_timeout_s: seconds(o.noOutputTimeout),
    stdin: stdin?.data,
    stdin_encoding: stdin?.encoding,
    when_busy: o.whenBusy,
    request_key: o.requestKey ?? newKey(),
    record: o.record
  };
}
function resultOf(command, exit, output) {
  if (exit.exit_code === void 0 && exit.error) {
    const { code, message, details } = exit.error;
    if (code !== "INTERNAL_ERROR" && code !== "SESSION_LOST") throw refusal(exit.error);
    throw new OutcomeUnknownError(message, code, { ...details, exec_id: exit.exec_id });
  }
  const { stdout, stderr } = output;
  const result = {
    success: exit.exit_code === 0,
    exitCode: exit.exit_code ?? -1,
    stdout: typeof stdout === "string" ? stdout : textOf(stdout),
    stderr: typeof stderr === "string" ? stderr : textOf(stderr),
    command,
    duration: exit.duration_ms,
    timestamp: (/* @__PURE__ */ new Date()).toISOString(),
    sessionId: exit.session_id,
    execId: exit.exec_id,
    cwd: exit.working_dir,
    timedOut: exit.timed_out,
    cancelled: exit.cancelled,
    truncated: output.truncated,
    shellRestored: exit.shell_restored,
    background: exit.background ?? [],
    bytes: () => ({ stdout: toBytes(stdout), stderr: toBytes(stderr) })
  };
  if (exit.signal) result.signal = exit.signal;
  if (exit.timeout_kind) result.timeoutKind = exit.timeout_kind;
  if (output.omitted) result.omitted = output.omitted;
  if (exit.oom_killed) result.oomKilled = true;
  if (exit.limit_hit) result.limitHit = exit.limit_hit;
  return result;
}
function outputOf(r) {
  const output = (text, encoding) => encoding === "utf-8" ? text : decodeBytes(text, encoding);
  return { stdout: output(r.stdout, r.stdout_encoding), stderr: output(r.stderr, r.stderr_encoding), truncated: r.truncated, omitted: r.omitted };
}

// src/collector.ts
var Buffer = class {
  length = 0;
  bytes = new Uint8Array(0);
  add(more) {
    const length = this.length + more.length;
    if (length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(length, 2 * this.bytes.length));
      larger.set(this.all);
      this.bytes = larger;
    }
    this.bytes.set(more, this.length);
    this.length = length;
  }
  /** Keeps the last bytes only. */
  cut(most) {
    this.bytes.copyWithin(0, this.length - most, this.length);
    this.length = most;
  }
  get all() {
    return this.bytes.subarray(0, this.length);
  }
};
var Collector = class {
  /** At most `most` bytes are kept. */
  constructor(most) {
    this.most = most;
  }
  most;
  head = new Buffer();
  tail = new Buffer();
  dropped = 0;
  add(bytes) {
    const room = Math.max(0, Math.floor(this.most / 2) - this.head.length);
    if (room > 0) this.head.add(bytes.subarray(0, room));
    if (bytes.length <= room) return;
    this.tail.add(bytes.subarray(room));
    if (this.tail.length > 2 * this.tailRoom) this.cut();
  }
  /** What is missing between beginning and end. */
  get omitted() {
    this.cut();
    return this.dropped > 0 ? { at: this.head.length, bytes: this.dropped } : void 0;
  }
  bytes() {
    this.cut();
    const all = new Uint8Array(this.head.length + this.tail.length);
    all.set(this.head.all);
    all.set(this.tail.all, this.head.length);
    return all;
  }
  get tailRoom() {
    return this.most - Math.floor(this.most / 2);
  }
  cut() {
    const excess = this.tail.length - this.tailRoom;
    if (excess <= 0) return;
    this.tail.cut(this.tailRoom);
    this.dropped += excess;
  }
};

// src/input.ts
var pieceBytes = 64 << 10;
var Input = class {
  // an older server knows none
  constructor(send, end) {
    this.send = send;
    this.end = end;
  }
  send;
  end;
  last = Promise.resolve();
  unfinished = 0;
  offsets = true;
  /** Writes after everything that was written before. With `eof` nothing may follow. */
  write(data, eof = false) {
    const bytes = toBytes(data);
    return this.queue(() => this.pieces(bytes, eof));
  }
  /** Does something after everything that was asked of it before. */
  queue(job) {
    this.unfinished++;
    const done = this.last.then(job).finally(() => this.unfinished--);
    this.last = done.catch(() => {
    });
    return done;
  }
  /** Nothing is being written, or waits for its turn. */
  get idle() {
    return this.unfinished === 0;
  }
  /** Ends the input. It does not matter if it has ended already, as after the end of what reads it. */
  async close() {
    try {
      await this.write("", true);
    } catch (error) {
      if (!(error instanceof TrlError) || error.code !== "STDIN_CLOSED") throw error;
    }
  }
  async pieces(bytes, eof) {
    for (let at = 0; at === 0 || at < bytes.length; at += pieceBytes) {
      await this.give(bytes.subarray(at, at + pieceBytes), eof && at + pieceBytes >= bytes.length);
    }
  }
  /** Sends a piece: again while the server has no room for it, and again until it is known what became of it. */
  async give(bytes, eof) {
    let lost;
    let offset;
    for (let wait = 2; ; ) {
      try {
        const answer = await this.send(() => {
          if (!lost && this.offsets) offset = this.end;
          return { ...encodeBytes(bytes), ...eof && { eof }, ...offset !== void 0 && { offset } };
        });
        this.end = answer.input_offset;
        return;
      } catch (error) {
        if (offset !== void 0 && error instanceof ConnectionLostError && error.outcome === "unknown") {
          lost = error;
          continue;
        }
        if (error instanceof TrlError && isFull(error)) {
          await pause(wait);
          wait = Math.min(2 * wait, 200);
          continue;
        }
        if (offset !== void 0 && !lost && error instanceof TrlError && error.code === "INVALID_PARAMS" && error.details.field === "offset") {
          this.offsets = false;
          offset = void 0;
          continue;
        }
        if (offset === void 0 || !(error instanceof TrlError) || error.code !== "OFFSET_MISMATCH") {
          if (lost) this.end = void 0;
          throw lost && error instanceof ConnectionLostError ? lost : error;
        }
        const end = Number(error.details.input_offset);
        const taken = end - offset;
        this.end = end;
        if (!lost && taken === 0) throw error;
        if (lost) {
          if (taken <= 0 || taken > bytes.length) throw lost;
          if (taken === bytes.length && !eof) return;
          bytes = bytes.subarray(taken);
          lost = void 0;
        }
      }
    }
  }
};
function isFull(error) {
  return error.code === "RATE_LIMITED" || error.code === "LIMIT_EXCEEDED" && error.details.limit === "stdin";
}

// src/window.ts
var windowBytes = 1 << 20;

// src/stream.ts
var fewItems = 64;
var smallPiece = 4096;
function joined(last, { offset, stream, bytes, replay, snapshot }) {
  if (last?.kind !== "chunk" || snapshot || last.chunk.snapshot) return void 0;
  const before = last.chunk;
  if (before.stream !== stream || before.replay !== replay || endOf(before) !== offset || before.bytes.length + bytes.length > smallPiece) return void 0;
  const both = new Uint8Array(before.bytes.length + bytes.length);
  both.set(before.bytes);
  both.set(bytes, before.bytes.length);
  return { kind: "chunk", chunk: { ...before, bytes: both } };
}
var Stream = class {
  constructor(connection, source, offset = 0, flow = {}) {
    this.connection = connection;
    this.source = source;
    this.position = new Position(offset);
    this.offset = offset;
    this.windowBytes = flow.windowBytes ?? windowBytes;
    this.manual = flow.acknowledge === "manual";
    this.exited = this.exit.promise;
    this.exited.catch(() => {
    });
  }
  connection;
  source;
  /** Everything before it was taken by the reader. */
  offset = 0;
  /** Fulfilled with the data of the exit when it comes, though output before it may wait; rejected when no exit will come. */
  exited;
  windowBytes;
  position;
  // of what has come
  items = [];
  held = 0;
  // bytes in items
  manual;
  acknowledged = 0;
  ended = false;
  // the exit has come, or failure is set
  failure;
  attached;
  // what brings the stream now
  opening = false;
  accepted = false;
  // the server has answered a request for it
  unread = false;
  // nobody reads: old output gives way
  wake;
  exit = Promise.withResolvers();
  /** Everything before it has come. */
  get received() {
    return this.position.next;
  }
  /** Opens the stream and returns when the server has accepted it. A link that is lost meanwhile is no failure. */
  async open() {
    this.opening = true;
    try {
      await this.attach();
    } catch (error) {
      this.fail(error);
      throw error;
    } finally {
      this.opening = false;
    }
    this.resume();
  }
  async attach() {
    const node = this.connection.nodeWait();
    for (let asked; ; ) {
      let link;
      try {
        link = this.connection.current ?? await this.connection.connected();
      } catch (error) {
        throw asked === void 0 ? error : afterSending(error);
      }
      if (this.ended) throw this.failure ?? new ClosedError("the stream was left");
      const { epoch } = this.connection;
      if (asked !== void 0 && asked !== epoch) throw new ConnectionLostError("the server was started anew before it answered", "unknown");
      const sink = this.sinkOf(link);
      try {
        const from = this.received;
        const streamId = await this.source.open(this, link, sink);
        this.accepted = true;
        if (this.failure) {
          link.leave(streamId, sink, () => this.source.detach(link));
        } else if (!this.ended && !link.loss) {
          this.attached = { link, sink, streamId };
          this.acknowledged = from;
          if (!this.manual) this.acknowledge(this.offset);
        }
        return;
      } catch (error) {
        if (await node.passes(error)) continue;
        if (!(error instanceof ConnectionLostError)) throw error;
        if (error.outcome === "unknown" && !this.accepted) asked = epoch;
      }
    }
  }
  /** The next item; undefined after the exit. It waits for one. */
  async next(signal) {
    this.unread = false;
    for (; ; ) {
      const item = this.items.shift();
      if (item) {
        this.take(item);
        return item;
      }
      if (this.failure) throw this.failure;
      if (this.ended) return void 0;
      await until(signal, new Promise((resolve) => this.wake = resolve));
    }
  }
  /** Opens the stream and hands its output to a follower until it ends. */
  async deliver(to) {
    await this.open();
    for (let item = await this.next(); item; item = await this.next()) {
      if (item.kind === "chunk") to.chunk(item.chunk);
      else if (item.kind === "gap") to.gap(item.from, item.to);
    }
  }
  /** Nobody will read for now: output beyond half of the window is dropped, and is a gap for a later reader. */
  leaveUnread() {
    this.unread = true;
    this.shed();
    this.resume();
  }
  /** Leaves the stream: no more output is wanted, and a reader that waits gets the reason. What it is of goes on. */
  leave(reason = new ClosedError("the stream was left")) {
    if (this.ended) return;
    if (this.attached) {
      const { link, sink, streamId } = this.attached;
      link.leave(streamId, sink, () => this.source.detach(link));
    }
    this.fail(reason);
  }
  take(item) {
    if (item.kind === "chunk") {
      this.offset = Math.max(this.offset, endOf(item.chunk));
      this.held -= item.chunk.bytes.length;
    } else if (item.kind === "gap") {
      this.offset = Math.max(this.offset, item.to);
    }
    if (!this.manual || item.kind === "gap") this.acknowledge(this.offset);
    this.resume();
  }
  /** Tells the server that everything before an offset is done, a quarter of the window at a time. */
  acknowledge(offset) {
    if (!this.attached || offset - this.acknowledged < this.windowBytes / 4) return;
    this.acknowledged = offset;
    this.attached.link.send("stream.ack", { stream_id: this.attached.streamId, offset });
  }
  /** Attaches again after a loss, but not before the reader has taken most of what is here. If nobody reads, old output gives way to new. */
  resume() {
    if (this.ended || this.opening || this.attached || this.held > this.windowBytes / 4 && !this.unread) return;
    this.open().catch(() => {
    });
  }
  sinkOf(link) {
    return {
      opened: ({ gap, chunks }) => {
        if (gap) this.gap(gap.from, gap.to);
        for (const chunk of chunks ?? []) this.chunk(readChunk(chunk));
      },
      chunk: (chunk) => this.chunk(chunk),
      gap: (from, to) => this.gap(from, to),
      event: (name, data) => {
        if (name === "input.refused") this.source.refused?.(link, data);
        else this.event(name, data);
      },
      lost: () => {
        if (this.attached?.link !== link) return;
        this.attached = void 0;
        this.resume();
      },
      displaced: () => {
        if (this.attached?.link === link) this.fail(new ClosedError("another reader of this client has taken over the stream"));
      }
    };
  }
  chunk(chunk) {
    const rest = this.position.take(chunk);
    if (!rest) return;
    this.held += rest.bytes.length;
    const both = this.items.length < fewItems || this.ended ? void 0 : joined(this.items.at(-1), rest);
    if (both) this.items[this.items.length - 1] = both;
    else this.push({ kind: "chunk", chunk: rest });
    if (this.unread) this.shed();
  }
  gap(from, to) {
    const rest = this.position.skip(from, to);
    if (!rest) return;
    this.push({ kind: "gap", ...rest });
    if (this.unread) this.shed();
  }
  /** Gives the reader an event at its place in the output. */
  event(name, data) {
    this.push({ kind: "event", name, data });
    if (name !== this.source.exit) return;
    this.end();
    this.exit.resolve(data);
  }
  push(item) {
    if (this.ended) return;
    this.items.push(item);
    this.wake?.();
  }
  /** Drops the oldest output until half of the window is free. */
  shed() {
    if (this.held <= this.windowBytes / 2) return;
    const kept = [];
    let from;
    let to = this.offset;
    while (this.items.length > 0 && this.held > this.windowBytes / 2) {
      const item = this.items.shift();
      if (item.kind === "event") {
        kept.push(item);
        continue;
      }
      from ??= item.kind === "gap" ? item.from : item.chunk.offset;
      to = item.kind === "gap" ? item.to : endOf(item.chunk);
      if (item.kind === "chunk") this.held -= item.chunk.bytes.length;
    }
    this.items.unshift(...kept, { kind: "gap", from: from ?? to, to });
    this.offset = to;
    this.acknowledge(to);
    this.resume();
  }
  fail(error) {
    if (this.ended) return;
    this.failure = error;
    this.end();
    this.exit.reject(error);
    this.wake?.();
  }
  end() {
    this.ended = true;
    this.attached = void 0;
  }
};

// src/command.ts
var endingTime = 6e3;
var largestStdin = 1 << 20;
var Command = class {
  // why the command did not get all of its input
  /** @internal */
  constructor(connection, use, command, o = {}) {
    this.connection = connection;
    this.o = o;
    const { stdin, ...rest } = o;
    const data = stdin === void 0 || stdin === "open" ? void 0 : toBytes(stdin);
    const inPieces = data !== void 0 && data.length > largestStdin;
    const params = {
      ...execParams("", command, inPieces || data === void 0 ? rest : { ...rest, stdin: data }),
      interactive_stdin: inPieces || stdin === "open",
      on_slow: "block",
      window_bytes: windowBytes
    };
    this.text = params.command;
    const most = o.maxOutputBytes ?? 1 << 20;
    this.output = { stdout: new Collector(most), stderr: new Collector(most) };
    this.outcome.promise.catch(() => {
    });
    this.stream = new Stream(connection, {
      exit: "exec.exit",
      open: async (stream, link, sink) => {
        if (this.execId) {
          return attach(link, sink, this.execId, stream.received, "block");
        }
        const { id, answer } = link.call("exec.stream", params, sink);
        this.request = { link, id };
        if (this.cancelling) this.sendCancel();
        const opened2 = await answer;
        this.execId = opened2.exec_id ?? "";
        return opened2.stream_id;
      },
      detach: (link) => link.send("exec.detach", { exec_id: this.execId })
    });
    this.input = new Input(async (piece) => {
      const exec_id = await this.id;
      return connection.call("exec.input", () => ({ exec_id, ...piece() }));
    }, 0);
    if (o.signal?.aborted) {
      this.stream.leave(o.signal.reason);
      this.id = Promise.reject(o.signal.reason);
    } else {
      o.signal?.addEventListener("abort", this.onAbort, { once: true });
      this.stream.exited.catch(() => {
      }).finally(() => o.signal?.removeEventListener("abort", this.onAbort));
      this.id = use(async (sessionId) => {
        params.session_id = sessionId;
        await this.stream.open();
        return this.execId;
      });
      this.id.catch((error) => this.stream.leave(error));
    }
    this.id.catch(() => {
    });
    if (inPieces) this.input.write(data, true).catch(this.onInputFailure);
  }
  connection;
  o;
  /** The command's id, when the server has accepted it. */
  id;
  stream;
  input;
  text;
  execId = "";
  request;
  // the exec.stream in flight
  claimed = false;
  output;
  gaps = false;
  outcome = Promise.withResolvers();
  cancelling;
  inputFailure;
  /** The offset after the last byte that was read. */
  get offset() {
    return this.stream.offset;
  }
  /** The exit code, when the command has ended. Whoever asks for it, and does not read, lets old output go. */
  get exitCode() {
    if (!this.claimed) this.stream.leaveUnread();
    return this.stream.exited.then((exit) => resultOf(this.text, exit, { stdout: none, stderr: none, truncated: true }).exitCode);
  }
  /** Waits for the end. It reads the output, unless somebody iterates, and keeps of each stream at most `maxBytes`. */
  async result(o = {}) {
    if (!this.claimed) {
      if (o.maxBytes !== void 0) this.output.stdout.most = this.output.stderr.most = o.maxBytes;
      this.claim();
      for await (const _ of this.items()) ;
    }
    return this.outcome.promise;
  }
  [Symbol.asyncIterator]() {
    this.claim();
    return this.events();
  }
  /** The output as bytes. */
  bytes() {
    this.claim();
    return this.pieces();
  }
  /**
   * Ends the command: TERM, and KILL after a grace; and returns when it has ended. What nobody reads meanwhile gives way. With a signal it sends only
   * that.
   */
  async kill(signal) {
    const exec_id = await this.id;
    if (signal !== void 0) {
      await this.connection.call("exec.cancel", { exec_id, signal });
      return;
    }
    this.stream.leaveUnread();
    await this.connection.call("exec.cancel", { exec_id });
  }
  /** Writes to a command that was started with `stdin: "open"`. It waits while the command does not read. */
  write(data) {
    return this.input.write(data);
  }
  closeStdin() {
    return this.input.close();
  }
  /** Stops reading. The command goes on. */
  detach() {
    this.stream.leave();
  }
  claim() {
    if (this.claimed) throw new TypeError("a command's output can be read once");
    this.claimed = true;
  }
  async *events() {
    const text = new Text();
    try {
      yield { type: "start", command: this.text, execId: await this.id, timestamp: now() };
      for await (const item of this.items()) {
        if (item.kind === "chunk") {
          const type = channelOf(item.chunk);
          const data = text.add(type, item.chunk.bytes);
          if (data) yield { type, data, offset: item.chunk.offset, timestamp: now() };
        } else {
          for (const type of ["stdout", "stderr"]) {
            const data = text.end(type);
            if (data) yield { type, data, offset: this.offset, timestamp: now() };
          }
          if (item.kind === "gap") yield { type: "gap", from: item.from, to: item.to, timestamp: now() };
        }
      }
      const result = await this.outcome.promise;
      yield { type: "complete", exitCode: result.exitCode, result, timestamp: now() };
    } catch (error) {
      this.outcome.reject(error);
      throw error;
    } finally {
      this.left();
    }
  }
  async *pieces() {
    for await (const item of this.items()) {
      if (item.kind === "gap") yield { gap: { from: item.from, to: item.to } };
      else if (item.kind === "chunk") yield { stream: channelOf(item.chunk), offset: item.chunk.offset, bytes: item.chunk.bytes };
    }
  }
  /** Everything that comes, and the exit as the last; it also keeps the output for the result. */
  async *items() {
    try {
      for (let item = await this.stream.next(); item; item = await this.stream.next()) {
        if (item.kind === "chunk") this.output[channelOf(item.chunk)].add(item.chunk.bytes);
        else if (item.kind === "gap") this.gaps = true;
        else if (item.name === "exec.exit") this.finish(item.data);
        yield item;
      }
      await this.outcome.promise;
    } catch (error) {
      this.outcome.reject(error);
      throw error;
    } finally {
      this.left();
    }
  }
  /** Nobody reads any more. */
  left() {
    this.stream.leave();
    this.outcome.reject(new ClosedError("the command's output was left"));
  }
  finish(exit) {
    if (this.cancelling) throw this.o.signal.reason;
    if (this.inputFailure) throw this.inputFailure;
    const { stdout, stderr } = this.output;
    const omitted = stdout.omitted || stderr.omitted ? { ...stdout.omitted && { stdout: stdout.omitted }, ...stderr.omitted && { stderr: stderr.omitted } } : void 0;
    const truncated = this.gaps || omitted !== void 0;
    this.outcome.resolve(checked(resultOf(this.text, exit, { stdout: stdout.bytes(), stderr: stderr.bytes(), truncated, omitted }), this.o.check));
  }
  /** Ends the command, waits for its end, but not for ever, and has the reader get the signal's reason. */
  onAbort = () => {
    const { reason } = this.o.signal;
    this.stream.leaveUnread();
    this.sendCancel();
    const over = new AbortController();
    const exited = this.stream.exited.catch(() => {
    }).finally(() => over.abort());
    this.cancelling = Promise.race([exited, pause(endingTime, over.signal)]).then(() => this.stream.leave(reason));
  };
  /** A command may end before it has read everything. Otherwise it got a part of its input, or a part twice, and must not go on. */
  onInputFailure = async (error) => {
    if (error instanceof TrlError && (error.code === "STDIN_CLOSED" || error.code === "EXEC_NOT_FOUND")) return;
    this.inputFailure = error;
    await this.kill().catch(() => {
    });
    this.stream.leave(error);
  };
  sendCancel() {
    if (this.execId) {
      this.connection.call("exec.cancel", { exec_id: this.execId }).catch(() => {
      });
    } else if (this.request && !this.request.link.loss) {
      this.request.link.send("exec.cancel", { request_id: this.request.id });
    } else if (!this.request) {
      this.stream.leave(this.o.signal?.reason);
    }
  }
};
async function attach(link, sink, execId, offset, onSlow) {
  return (await link.call("exec.attach", { exec_id: execId, offset, on_slow: onSlow, window_bytes: windowBytes }, sink).answer).stream_id;
}
var channelOf = (chunk) => chunk.stream === "stderr" ? "stderr" : "stdout";
function checked(result, check) {
  if (check && !result.success) throw new CommandError(result);
  return result;
}
var none = new Uint8Array();
var now = () => (/* @__PURE__ */ new Date()).toISOString();

// src/loghub.ts
var pageBytes = 256 << 10;
function processOutput(connection, processId, since, onSlow) {
  const logs = { process_id: processId, follow: true, max_bytes: pageBytes, on_slow: onSlow };
  return new Stream(
    connection,
    {
      exit: "process.exit",
      open: async (stream, link, sink) => (await link.call("process.logs", { ...logs, offset: stream.received, window_bytes: stream.windowBytes }, sink).answer).stream_id,
      detach: (link) => link.send("process.detach", { process_id: processId })
    },
    since
  );
}
var LogHub = class {
  constructor(connection, processId, unused) {
    this.connection = connection;
    this.processId = processId;
    this.unused = unused;
  }
  connection;
  processId;
  unused;
  readers = /* @__PURE__ */ new Set();
  stream;
  /** Everything before it has been given to the readers. */
  following = 0;
  /** How the stream ended. */
  over;
  ending = false;
  wake;
  /** A reader from an offset on. */
  read(since) {
    const reader = new LogReader(this, since);
    this.readers.add(reader);
    if (!this.stream) {
      this.following = since;
      void this.follow(this.stream = processOutput(this.connection, this.processId, since, "block"));
    }
    return reader;
  }
  /** The process is being ended, which needs room for its last output: from now on no reader holds it up. One that is behind asks for what it missed. */
  letGo(ending = true) {
    this.ending = ending;
    this.roomMade();
  }
  /** A reader can take more. */
  roomMade() {
    this.wake?.();
  }
  leave(reader) {
    if (!this.readers.delete(reader)) return;
    this.roomMade();
    if (this.readers.size > 0) return;
    this.stream?.leave();
    this.unused();
  }
  async follow(stream) {
    try {
      await stream.open();
      for (let item = await stream.next(); item; item = await stream.next()) {
        this.following = stream.offset;
        if (item.kind === "event") this.over = { exit: item.data };
        for (const reader of this.readers) reader.offer(item);
        while (this.mustWait()) await new Promise((resolve) => this.wake = resolve);
      }
    } catch (error) {
      this.over = { error };
    }
    for (const reader of this.readers) reader.wakeUp();
  }
  /** One of the readers must keep up, the others need not. */
  mustWait() {
    if (this.ending || this.readers.size === 0) return false;
    for (const reader of this.readers) if (reader.hasRoom) return false;
    return true;
  }
};
var mostItems = 4096;
var LogReader = class {
  // of what was read
  constructor(hub, since) {
    this.hub = hub;
    this.position = new Position(since);
  }
  hub;
  items = [];
  held = 0;
  /** It has not been given everything, and asks for what is between its position and what the hub gives now. */
  behind = true;
  wake;
  left = false;
  ended = false;
  position;
  /** The next item, undefined after the exit. */
  async next(signal) {
    for (; ; ) {
      if (this.left || this.ended) return void 0;
      const item = this.items.shift();
      if (item?.kind === "chunk") {
        this.held -= item.chunk.bytes.length;
        const chunk = this.position.take(item.chunk);
        this.makeRoom();
        if (!chunk) continue;
        return { kind: "chunk", chunk };
      }
      if (item?.kind === "gap") {
        const gap = this.position.skip(item.from, item.to);
        if (!gap) continue;
        return { kind: "gap", ...gap };
      }
      if (item) return item;
      if (this.behind && this.position.next < this.hub.following) {
        await until(signal, this.page());
      } else if (this.behind) {
        this.behind = false;
        this.makeRoom();
      } else if (this.hub.over) {
        if ("error" in this.hub.over) throw this.hub.over.error;
        this.ended = true;
        return { kind: "event", name: "process.exit", data: this.hub.over.exit };
      } else {
        await until(signal, new Promise((resolve) => this.wake = resolve));
      }
    }
  }
  /** Takes what the hub has, unless too much waits already. */
  offer(item) {
    if (item.kind === "chunk" && !this.behind) {
      this.items.push(item);
      this.held += item.chunk.bytes.length;
    } else if (item.kind === "gap" && !this.behind) {
      this.items.push(item);
    }
    if (this.held > windowBytes || this.items.length > mostItems) {
      this.items = [];
      this.held = 0;
      this.behind = true;
    }
    this.wakeUp();
  }
  wakeUp() {
    this.wake?.();
  }
  /** It has read what it was given, or nearly. */
  get hasRoom() {
    return this.held <= windowBytes / 4 && this.items.length <= mostItems / 4 && !this.behind;
  }
  makeRoom() {
    if (this.hasRoom) this.hub.roomMade();
  }
  leave() {
    this.left = true;
    this.wakeUp();
    this.hub.leave(this);
  }
  async page() {
    const logs = await this.hub.connection.call("process.logs", { process_id: this.hub.processId, offset: this.position.next, max_bytes: pageBytes });
    if (logs.gap) this.items.push({ kind: "gap", from: logs.gap.from, to: logs.gap.to });
    for (const chunk of logs.chunks) {
      const read = readChunk(chunk);
      this.items.push({ kind: "chunk", chunk: read });
      this.held += read.bytes.length;
    }
  }
};

// src/process.ts
var slice = 3e4;
var grace = 1e3;
var lineSettles = 100;
var Process = class _Process {
  /** @internal */
  constructor(connection, hubs, info, inputEnd) {
    this.connection = connection;
    this.hubs = hubs;
    this.info = info;
    this.input = new Input((piece) => connection.call("process.input", () => ({ process_id: this.id, ...piece() })), inputEnd);
  }
  connection;
  hubs;
  info;
  input;
  /** @internal */
  static async start(connection, hubs, sessionId, command, o) {
    const params = {
      session_id: sessionId,
      command,
      request_key: newKey(),
      ...o.cwd !== void 0 && { working_dir: o.cwd },
      ...o.env && { env: wireEnv(o.env) },
      ...o.timeout !== void 0 && { timeout_s: seconds(o.timeout) },
      ...o.name !== void 0 && { name: o.name },
      ...o.stdin && { stdin: o.stdin }
    };
    const { process_id } = await connection.call("process.start", params, { signal: o.signal });
    const started = new _Process(connection, hubs, await connection.call("process.info", { process_id }), 0);
    if (o.onOutput || o.onExit) void started.report(o);
    return started;
  }
  get id() {
    return this.info.process_id;
  }
  get pid() {
    return this.info.pid;
  }
  get command() {
    return this.info.command;
  }
  get startTime() {
    return new Date(this.info.started_at);
  }
  get endTime() {
    return this.info.ended_at === void 0 ? void 0 : new Date(this.info.ended_at);
  }
  get exitCode() {
    return this.info.exit_code;
  }
  get status() {
    if (this.info.state === "running") return "running";
    if (this.info.signal) return "killed";
    return this.info.exit_code === 0 ? "completed" : "failed";
  }
  async refresh() {
    this.info = await this.connection.call("process.info", { process_id: this.id });
    return this;
  }
  async getStatus() {
    return (await this.refresh()).status;
  }
  /** The TCP ports on which it, or what it has started, listens now. */
  async ports() {
    return (await this.refresh()).info.ports ?? [];
  }
  /** Ends the process and everything that it has started: TERM, five seconds, KILL; and returns when it is gone. With a signal it sends only that. */
  async kill(signal) {
    const info = await kill(this.connection, this.hubs, this.id, signal);
    if (signal === void 0) this.info = info;
  }
  /** The output that there is now. */
  async getLogs() {
    const text = new Text();
    const all = { stdout: "", stderr: "" };
    let offset = 0;
    let gap;
    const { output_bytes: end } = (await this.refresh()).info;
    for (; ; ) {
      const logs = await this.connection.call("process.logs", { process_id: this.id, offset });
      for (const chunk of logs.chunks) {
        const { stream, bytes } = readChunk(chunk);
        if (stream !== "tty") all[stream] += text.add(stream, bytes);
      }
      if (logs.gap) gap = { from: gap?.from ?? logs.gap.from, to: logs.gap.to };
      offset = logs.next_offset;
      if (offset >= end || logs.eof || logs.chunks.length === 0) break;
    }
    all.stdout += text.end("stdout");
    all.stderr += text.end("stderr");
    return { ...all, nextOffset: offset, ...gap && { gap } };
  }
  /** The output from an offset on, as it comes, and then the exit. To break out of it leaves the process running. */
  async *streamLogs(o = {}) {
    o.signal?.throwIfAborted();
    const reader = this.reader(o.since ?? 0);
    const text = new Text();
    let offset = o.since ?? 0;
    const rest = function* () {
      for (const type of ["stdout", "stderr"]) {
        const data = text.end(type);
        if (data) yield { type, data, offset };
      }
    };
    try {
      for (let item = await reader.next(o.signal); item; item = await reader.next(o.signal)) {
        if (item.kind === "chunk") {
          const type = item.chunk.stream === "stderr" ? "stderr" : "stdout";
          const data = text.add(type, item.chunk.bytes);
          offset = item.chunk.offset + item.chunk.bytes.length;
          if (data) yield { type, data, offset: item.chunk.offset };
          continue;
        }
        yield* rest();
        if (item.kind === "gap") {
          yield { type: "gap", from: item.from, to: item.to };
          continue;
        }
        this.info = item.data;
        yield { type: "exit", exitCode: this.info.exit_code ?? null };
      }
    } finally {
      reader.leave();
    }
  }
  /** Waits until a port accepts connections, or answers HTTP. */
  async waitForPort(port, o = {}) {
    const host = o.host ?? "127.0.0.1";
    const url = `http://${host.includes(":") ? `[${host}]` : host}:${port}/${(o.path ?? "/").replace(/^\//, "")}`;
    const condition = o.mode === "http" ? { http: url } : { port, ...o.host !== void 0 && { host: o.host } };
    await this.wait(condition, `port ${port}`, o);
  }
  /** Waits until a line of the output contains a text or matches an expression. Lines from before count. */
  async waitForLog(pattern, o = {}) {
    const { timeout, signal, stream = "both" } = typeof o === "number" ? { timeout: o } : o;
    signal?.throwIfAborted();
    const over = new AbortController();
    const timer = timeout === void 0 ? void 0 : setTimeout(() => over.abort(new ProcessReadyTimeoutError(this.id, `output ${pattern}`, timeout)), timeout);
    const ended = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
    const reader = this.reader(0);
    try {
      const lines = new Lines(pattern);
      for (; ; ) {
        const item = await lines.next(ended, reader);
        if (item?.kind === "chunk" && (stream === "both" || item.chunk.stream === stream)) lines.add(item.chunk.stream, item.chunk.bytes);
        const exited = item?.kind === "event";
        const found = lines.take(exited || item === void 0);
        if (found) return found;
        if (exited) throw new ProcessExitedBeforeReadyError(this.id, `output ${pattern}`, (await this.refresh()).exitCode, lines.tail);
      }
    } finally {
      clearTimeout(timer);
      reader.leave();
    }
  }
  /** Waits until the process has ended. */
  async waitForExit(o = {}) {
    await this.wait({ exit: true }, "the end", typeof o === "number" ? { timeout: o } : o);
    await this.refresh();
    return { exitCode: this.info.exit_code ?? -1, ...this.info.signal && { signal: this.info.signal }, timedOut: this.info.timed_out ?? false };
  }
  /** Writes to a process that was started with `stdin: "open"`. It waits while the process does not read. */
  write(data) {
    return this.input.write(data);
  }
  closeStdin() {
    return this.input.close();
  }
  reader(since) {
    let hub = this.hubs.get(this.id);
    if (!hub) this.hubs.set(this.id, hub = new LogHub(this.connection, this.id, () => this.hubs.delete(this.id)));
    return hub.read(since);
  }
  /** Waits for a condition at the server. */
  async wait(condition, name, o) {
    o.signal?.throwIfAborted();
    const { timeout = Infinity } = o;
    const end = performance.now() + timeout;
    const over = new AbortController();
    const timer = timeout < Infinity ? setTimeout(() => over.abort(new ProcessReadyTimeoutError(this.id, name, timeout)), timeout + grace) : void 0;
    const signal = o.signal ? AbortSignal.any([o.signal, over.signal]) : over.signal;
    try {
      for (; ; ) {
        const params = () => ({ process_id: this.id, until: condition, timeout_s: Math.max(1e-3, Math.min(end - performance.now(), slice) / 1e3) });
        const r = await this.connection.call("process.wait", params, { signal });
        if (r.met) return;
        if (r.exit_code !== void 0 || r.signal) throw new ProcessExitedBeforeReadyError(this.id, name, r.exit_code, r.tail ?? "");
        if (performance.now() >= end) throw new ProcessReadyTimeoutError(this.id, name, timeout);
      }
    } finally {
      clearTimeout(timer);
    }
  }
  async report(o) {
    try {
      for await (const event of this.streamLogs()) {
        if (event.type === "stdout" || event.type === "stderr") o.onOutput?.(event.type, event.data);
        else if (event.type === "exit") o.onExit?.(event.exitCode);
      }
    } catch {
      o.onExit?.(null);
    }
  }
};
async function kill(connection, hubs, process_id, signal) {
  if (signal !== void 0) return connection.call("process.kill", { process_id, signal });
  const hub = hubs.get(process_id);
  hub?.letGo();
  try {
    return await connection.call("process.kill", { process_id });
  } catch (error) {
    hub?.letGo(false);
    throw error;
  }
}
var longestLine = 1 << 20;
var Lines = class {
  text = new Text();
  open = {};
  // by channel: a line that has no end yet
  whole = [];
  changed = false;
  // an open line since it was looked at
  pattern;
  constructor(pattern) {
    this.pattern = typeof pattern === "string" ? pattern : new RegExp(pattern, pattern.flags.replace(/[gy]/g, ""));
  }
  add(channel, bytes) {
    const lines = ((this.open[channel] ?? "") + this.text.add(channel, bytes)).split("\n");
    this.open[channel] = lines.pop();
    for (const line of lines) this.whole.push(line);
    if (this.open[channel].length > longestLine) {
      this.whole.push(this.open[channel]);
      this.open[channel] = "";
    }
    this.changed = true;
  }
  /** The next item; undefined if there is an open line and nothing comes. */
  async next(signal, reader) {
    if (!this.changed) return reader.next(signal);
    const quiet = new AbortController();
    const timer = setTimeout(() => quiet.abort(quiet), lineSettles);
    try {
      return await reader.next(AbortSignal.any([signal, quiet.signal]));
    } catch (error) {
      if (error === quiet) return void 0;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }
  /** The first line that fits; of the open ones only if nothing more comes. */
  take(settled) {
    const lines = this.whole.splice(0);
    if (settled) {
      lines.push(...Object.values(this.open));
      this.changed = false;
    }
    for (const line of lines) {
      this.tail = `${this.tail}${line}
`.slice(-2e3);
      if (typeof this.pattern === "string") {
        if (line.includes(this.pattern)) return { line };
      } else {
        const match = line.match(this.pattern);
        if (match) return { line, match };
      }
    }
    return void 0;
  }
  /** The last lines that were looked at. */
  tail = "";
};

// src/typing.ts
var keptBytes = 64 << 10;
var Typing = class {
  constructor(connection, termId, tell, inputEnd) {
    this.connection = connection;
    this.termId = termId;
    this.tell = tell;
    this.input = new Input((piece) => this.request(piece), inputEnd);
  }
  connection;
  termId;
  tell;
  input;
  at;
  next;
  // the offset of the next frame; undefined: none can be sent
  kept = [];
  // the latest frames that the server may not have taken
  keptSize = 0;
  heard = 0;
  // how much input the server has said that it has
  paused = 0;
  // attaches on their way, other than that of a new link
  refusing = false;
  // the server refuses frames, and one of its refusals has come
  again;
  // the input of refused frames
  waiting;
  /** Writes in requests, after everything that was typed. */
  write(data) {
    this.waiting = void 0;
    return this.input.write(data);
  }
  /** Sends text in one request on the connection of now, after everything that was typed. It does not wait for room. */
  send(data) {
    const bytes = toBytes(data);
    const link = this.connection.current;
    if (!link) return Promise.reject(new ConnectionLostError("not connected", "unsent"));
    this.waiting = void 0;
    return this.input.queue(async () => {
      await this.settle();
      await this.ask(link, bytes);
    });
  }
  /** Sends keys, in a frame if possible. */
  type(data) {
    const bytes = typeof data === "string" ? toBytes(data) : data.slice();
    if (bytes.length > pieceBytes) return this.write(bytes);
    if (this.input.idle && this.sendFrame(bytes)) return Promise.resolve();
    const link = this.connection.current;
    let { waiting } = this;
    if (waiting && waiting.link === link && waiting.size + bytes.length <= pieceBytes) {
      waiting.pieces.push(bytes);
      waiting.size += bytes.length;
    } else {
      const pieces = [bytes];
      const typed = this.input.queue(() => {
        if (this.waiting === waiting) this.waiting = void 0;
        return this.typeNow(link, pieces);
      });
      this.waiting = waiting = { link, pieces, size: bytes.length, typed };
    }
    return waiting.typed;
  }
  /** Frames can be sent on this link, from offset on if the server takes any. */
  attached(at, offset) {
    this.at = at;
    if (offset !== void 0) this.arrived(offset);
    this.forget();
    if (offset !== void 0) this.input.end = offset = Math.max(offset, this.heard);
    this.next = offset;
    this.refusing = false;
  }
  /** Tells whether the frames of a lost link did not all arrive before anything else of ours: the server had so much input. */
  arrived(end) {
    const last = this.kept.at(-1);
    if (last && end < last.offset + last.bytes.length) this.tell(new ConnectionLostError("the connection was lost before all input had arrived", "unknown"));
  }
  /** The terminal is being attached anew on its link: its stream gets another number, so no frame can be sent until resume. */
  pause() {
    this.paused++;
    this.next = void 0;
  }
  /** Goes on after pause. The link and the offset are those of the new attach, if the server has answered it. */
  resume(link, offset) {
    this.paused--;
    if (this.at?.link === link && offset !== void 0 && !this.refusing) this.next = Math.max(this.next ?? 0, offset);
  }
  /** A frame was refused, and so are those behind it. */
  refused(link, { offset, error }) {
    if (this.at?.link !== link || this.refusing) return;
    this.refusing = true;
    this.next = this.input.end = void 0;
    const first = this.kept.findIndex((piece) => piece.offset === offset);
    const lost = first < 0 ? [] : this.kept.slice(first);
    this.forget();
    if (error.code !== "OFFSET_MISMATCH" || lost.length === 0) {
      this.tell(refusal(error, "term.input"));
      return;
    }
    this.again = { link, bytes: concat(lost.map(({ bytes }) => bytes)) };
    void this.input.queue(() => this.sendAgain());
  }
  sendFrame(bytes) {
    const { at, next } = this;
    if (!at || next === void 0 || this.paused > 0 || !at.link.sendInput(at.streamId, at.sink, next, bytes)) return false;
    this.next = this.input.end = next + bytes.length;
    this.kept.push({ offset: next, bytes });
    this.keptSize += bytes.length;
    while (this.keptSize > keptBytes) this.keptSize -= this.kept.shift().bytes.length;
    return true;
  }
  forget() {
    this.kept = [];
    this.keptSize = 0;
  }
  async typeNow(link, pieces) {
    await this.sendAgain();
    link ??= await this.connection.connected();
    const bytes = concat(pieces);
    if (this.at?.link === link && this.sendFrame(bytes)) return;
    if (!link.loss) await this.settle();
    await this.ask(link, bytes);
  }
  /** Sends input in a request on this link. */
  async ask(link, bytes) {
    this.next = this.input.end = void 0;
    const node = this.connection.nodeWait();
    for (; ; ) {
      try {
        const taken = await link.call("term.input", { term_id: this.termId(), ...encodeBytes(bytes) }).answer;
        this.taken(link, taken);
        return;
      } catch (error) {
        if (!await node.passes(error)) throw error;
      }
    }
  }
  /** Sends a piece of what is written. */
  async request(piece) {
    await this.settle();
    this.next = void 0;
    let link;
    const taken = await this.connection.call("term.input", () => ({ term_id: this.termId(), ...piece() }), { sent: (now2) => link = now2 });
    this.taken(link, taken);
    return taken;
  }
  /**
   * Returns when all frames were taken, or sent again. The answer to an empty request comes after all refusals. If the link was lost, the answer to one over
   * the next link says what has arrived; the terminal may be attached there later.
   */
  async settle() {
    while (this.at && this.kept.length > 0) {
      const last = this.kept.at(-1);
      const lost = this.at.link.loss !== void 0;
      const link = lost ? await this.connection.connected() : this.at.link;
      try {
        await this.ask(link, new Uint8Array());
      } catch {
        if (link.loss) continue;
        if (lost) break;
      }
      if (lost && this.kept.at(-1) === last && this.input.end !== void 0) this.arrived(this.input.end);
      this.forget();
    }
    await this.sendAgain();
  }
  async sendAgain() {
    const { again } = this;
    if (!again) return;
    this.again = void 0;
    try {
      await this.ask(again.link, again.bytes);
    } catch (error) {
      this.tell(error);
    }
  }
  /** A request with input was answered. An older server does not say where frames begin. */
  taken(link, { input_offset: offset }) {
    this.input.end = offset;
    this.heard = Math.max(this.heard, offset ?? 0);
    if (this.at?.link !== link) return;
    this.refusing = false;
    this.next = offset;
  }
};

// src/terminal.ts
function firstOf(o) {
  return {
    cols: o.cols,
    rows: o.rows,
    ...o.cmd !== void 0 && { command: o.cmd },
    ...o.cwd !== void 0 && { working_dir: o.cwd },
    ...o.env && { env: wireEnv(o.env) },
    ...o.record && { record: true }
  };
}
var Terminal = class _Terminal {
  constructor(connection, o, open) {
    this.connection = connection;
    this.o = o;
    this.now = this.wanted = o.mode ?? "control";
    this.claim = o.claim;
    if (o.cols && o.rows) this.size = { cols: o.cols, rows: o.rows };
    if ("term_id" in open) this.termId = open.term_id;
    this.stream = new Stream(
      connection,
      {
        exit: "term.exit",
        open: async (stream, link, sink) => {
          if (this.termId) {
            const attached = await link.call("term.attach", this.attachParams(), sink).answer;
            const { now: now2 } = this;
            this.became(attached, link, sink);
            if (attached.mode !== now2) sink.event("term.control", { ...attached });
            return attached.stream_id;
          }
          const opened2 = await open(link, stream.windowBytes, sink);
          this.termId = opened2.term_id;
          this.became({ ...opened2, mode: "control", offset: 0, ...this.size }, link, sink);
          return opened2.stream_id;
        },
        detach: (link) => link.send("term.detach", { term_id: this.termId }),
        refused: (link, refused) => this.input.refused(link, refused)
      },
      o.since,
      o
    );
    this.input = new Typing(connection, () => this.termId, (error) => this.stream.event("refused", { error }), "term_id" in open ? void 0 : 0);
    this.opened = this.stream.open().then(() => this);
    this.opened.catch(() => {
    });
  }
  connection;
  o;
  /** Which of the `viewers` this client is. */
  viewerId = "";
  /** When this client asked for control, for another attach: undefined if it only watches. */
  claim;
  termId = "";
  now;
  wanted;
  size;
  stream;
  input;
  iterated = false;
  /** Fulfilled when the server has opened it or attached this client. @internal */
  opened;
  /** @internal */
  static open(connection, sessionId, o) {
    const params = { session_id: sessionId, request_key: newKey(), ...firstOf(o) };
    return new _Terminal(connection, { ...o, since: 0 }, (link, window_bytes, sink) => link.call("term.open", { ...params, window_bytes }, sink).answer);
  }
  /** Opens a terminal in a session that the same request makes or finds. @internal */
  static create(connection, session, o, made) {
    return new _Terminal(connection, { ...o, since: 0 }, async (link, window_bytes, sink) => {
      const answer = await link.call("session.create", { ...session, terminal: { ...firstOf(o), window_bytes } }, sink).answer;
      made(answer);
      return answer.terminal;
    });
  }
  /** @internal */
  static attach(connection, id, o) {
    return new _Terminal(connection, o, { term_id: id });
  }
  get id() {
    return this.termId;
  }
  /** Whether this client may type now. */
  get mode() {
    return this.now;
  }
  /** The offset after the last byte that was read. */
  get offset() {
    return this.stream.offset;
  }
  [Symbol.asyncIterator]() {
    if (this.iterated) throw new TypeError("a terminal's output can be read once; attachTerminal gives another reader");
    this.iterated = true;
    return this.events();
  }
  async *events() {
    try {
      for (let item = await this.stream.next(); item; item = await this.stream.next()) {
        if (item.kind === "chunk") {
          const { bytes, offset, replay, snapshot } = item.chunk;
          yield { type: "data", bytes, offset, end: endOf(item.chunk), replay, snapshot };
        } else if (item.kind === "gap") {
          yield { type: "gap", from: item.from, to: item.to };
        } else {
          const event = this.eventOf(item.name, item.data);
          if (event) yield event;
        }
      }
    } finally {
      this.stream.leave();
    }
  }
  /** With `acknowledge: "manual"`: all output before an offset, such as the `end` of a `data` event, is done. */
  acknowledge(offset) {
    this.stream.acknowledge(offset);
  }
  /** Types. It waits while nothing in the terminal reads. */
  write(data) {
    return this.input.write(data);
  }
  /**
   * Types keys without waiting until the terminal has taken them, so each costs no answer. The event `refused` tells what was not taken. Without a connection
   * keys go in a request over the next one, and the first ones after a refusal go in a request, too; an older server gets nothing else. The promise is
   * rejected if such a request fails. Text of more than 64 KiB is written.
   */
  type(data) {
    return this.input.type(data);
  }
  /** Types in one request, without waiting for a connection or for room. @internal */
  send(data) {
    return this.input.send(data);
  }
  async resize(cols, rows) {
    this.size = { cols, rows };
    await this.connection.call("term.resize", { term_id: this.termId, cols, rows });
  }
  /** Takes control from the client that has it, for a window of this size. The screen comes again, unless `history` is on. */
  async takeOver(size = this.size) {
    const { wanted, claim } = this;
    this.size = size;
    this.wanted = "control";
    this.claim = void 0;
    let link;
    this.input.pause();
    try {
      const attached = await this.connection.call("term.attach", () => this.attachParams(), { sent: (now2) => link = now2 });
      this.input.resume(link, attached.input_offset);
      this.became(attached);
    } catch (error) {
      this.input.resume();
      this.wanted = wanted;
      this.claim = claim;
      throw error;
    }
  }
  /** The screen as lines of text, with the cursor. */
  snapshot() {
    return this.connection.call("term.snapshot", { term_id: this.termId });
  }
  /** Ends the terminal and everything that was started in it. */
  async close() {
    await this.connection.call("term.close", { term_id: this.termId });
  }
  /** Leaves the terminal, which goes on. */
  detach() {
    this.stream.leave();
  }
  attachParams() {
    const offset = this.stream.received || this.o.since;
    const from = this.o.history ? { history: true, ...offset !== void 0 && { offset } } : { snapshot: true };
    const mine = this.wanted === "control" ? { ...this.size, ...this.claim !== void 0 && { claim: this.claim } } : {};
    return { term_id: this.termId, mode: this.wanted, window_bytes: this.stream.windowBytes, ...from, ...mine };
  }
  became(attached, link, sink) {
    this.claim = attached.claim;
    this.now = attached.mode;
    this.viewerId = attached.viewer_id;
    this.stream.event("attached", attached);
    if (link && sink) this.input.attached({ link, sink, streamId: attached.stream_id }, attached.input_offset);
  }
  eventOf(name, data) {
    switch (name) {
      case "attached": {
        const { mode, cols, rows, offset, recording_id: recordingId } = data;
        return { type: "attached", mode, cols, rows, offset, ...recordingId !== void 0 && { recordingId } };
      }
      case "refused":
        return { type: "refused", error: data.error };
      case "term.viewers":
        return { type: "viewers", viewers: data.attached ?? [] };
      case "term.resized": {
        const { cols, rows } = data;
        return { type: "resized", cols, rows };
      }
      case "term.control": {
        const { mode, by } = data;
        this.now = mode;
        return { type: "control", mode, ...by && { by } };
      }
      case "term.command": {
        const { command, exit_code: exitCode, duration_ms: durationMs } = data;
        return { type: "command", ...command !== void 0 && { command }, ...exitCode !== void 0 && { exitCode }, ...durationMs !== void 0 && { durationMs } };
      }
      case "term.exit": {
        const { exit_code: exitCode, signal } = data;
        return { type: "exit", ...exitCode !== void 0 && { exitCode }, ...signal && { signal } };
      }
    }
    return void 0;
  }
};
async function createWithTerminal(connection, session, o) {
  const keyed = { request_key: newKey(), ...session };
  let made;
  try {
    const terminal = await Terminal.create(connection, keyed, o, (answer) => made = answer).opened;
    return { made, terminal };
  } catch (error) {
    if (!(error instanceof TrlError && error.code === "INVALID_PARAMS" && error.details.field === "terminal")) throw error;
  }
  made = await connection.call("session.create", keyed);
  return { made, terminal: await Terminal.open(connection, made.session_id, o).opened };
}

// src/watch.ts
var names = [
  "session.state",
  "session.expiring",
  "exec.started",
  "exec.exit",
  "process.started",
  "process.exit",
  "term.opened",
  "term.viewers",
  "term.exit"
];
var mostEvents = 1024;
async function* watch(parent, use, signal) {
  signal?.throwIfAborted();
  const events = [];
  const add = (event) => {
    if (events.length < mostEvents) events.push(event);
    else if (events.at(-1)) events.push(void 0);
    wake();
  };
  let wake = () => {
  };
  let failure;
  let sessionId = "";
  let subscribing = true;
  const subscribe = () => connection.call("session.watch", { session_id: sessionId });
  const connection = parent.sibling(({ kind }) => {
    if (kind === "up" || subscribing) return;
    subscribing = true;
    subscribe().then(
      () => add(),
      (error) => {
        if (error instanceof SessionTerminatedError) add();
        else failure = { error };
        wake();
      }
    ).finally(() => subscribing = false);
  });
  for (const type of names) {
    connection.on(type, (data) => {
      if (data.session_id !== sessionId) return;
      const { from, to } = data;
      add(type === "session.state" && from === to ? void 0 : { type, data });
    });
  }
  try {
    await until(
      signal,
      use((id) => {
        sessionId = id;
        return subscribe();
      })
    );
    subscribing = false;
    for (; ; ) {
      if (events.length > 0) {
        const event = events.shift() ?? { type: "missed", data: await until(signal, connection.call("session.info", { session_id: sessionId })) };
        yield event;
        const state = event.type === "session.state" ? event.data.to : event.type === "missed" ? event.data.state : "";
        if (state === "TERMINATED") return;
      } else if (failure) throw failure.error;
      else await until(signal, new Promise((resolve) => wake = resolve));
    }
  } finally {
    void parent.drop(connection);
  }
}

// src/session.ts
var Session = class {
  /** @internal */
  constructor(connection, hubs, id, name) {
    this.connection = connection;
    this.hubs = hubs;
    this.#id = id;
    this.#name = name;
  }
  connection;
  hubs;
  #id;
  #name;
  get id() {
    return this.#id;
  }
  get name() {
    return this.#name;
  }
  /**
   * Runs a command and returns its result; a command that fails is a result, too. If the connection is lost meanwhile it is made again, and the command
   * still runs once. A list of words is quoted for the shell.
   */
  async exec(command, o = {}) {
    o.signal?.throwIfAborted();
    if (o.onOutput || o.stdin !== void 0 && o.stdin.length > largestStdin / 3 && toBytes(o.stdin).length > largestStdin) return this.follow(command, o);
    const params = {
      ...execParams("", command, o),
      max_output_bytes: o.maxOutputBytes,
      clean: o.clean
    };
    const r = await this.use((session_id) => {
      params.session_id = session_id;
      return o.signal ? this.endedBy(o.signal, params) : this.connection.call("exec.run", params);
    });
    return checked(resultOf(params.command, r, outputOf(r)), o.check);
  }
  /** Starts a command and returns at once. Iterate over it for its output as it comes. */
  execStream(command, o = {}) {
    return new Command(this.connection, this.use, command, o);
  }
  /** Starts a background process from the session's present state. */
  startProcess(command, o = {}) {
    return this.use((id) => Process.start(this.connection, this.hubs, id, commandLine(command), o));
  }
  async listProcesses() {
    const { processes } = await this.use((session_id) => this.connection.call("process.list", { session_id }));
    return processes.map((info) => new Process(this.connection, this.hubs, info));
  }
  async getProcess(id) {
    try {
      return new Process(this.connection, this.hubs, await this.connection.call("process.info", { process_id: id }));
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }
  async killProcess(id, signal) {
    await kill(this.connection, this.hubs, id, signal);
  }
  /** Ends every process that runs; it answers how many. */
  async killAllProcesses() {
    const running = (await this.listProcesses()).filter((p) => p.status === "running");
    await Promise.all(running.map((p) => p.kill()));
    return running.length;
  }
  openTerminal(o) {
    return this.use((id) => Terminal.open(this.connection, id, o).opened);
  }
  attachTerminal(id, o = {}) {
    return Terminal.attach(this.connection, id, o).opened;
  }
  /** Sets and unsets exported variables of the shell. */
  async setEnvVars(env) {
    const lines = Object.entries(wireEnv(env)).map(([name, value]) => {
      if (!/^[A-Za-z_]\w*$/.test(name)) throw new TypeError(`${name} is no name of a variable`);
      return value === null ? `unset ${name}` : `export ${name}=${quote(value)}`;
    });
    if (lines.length > 0) await this.exec(lines.join("\n"), { check: true });
  }
  info() {
    return this.use((session_id) => this.connection.call("session.info", { session_id }));
  }
  /**
   * Everything that happens in the session, as long as somebody iterates. After a lost connection it goes on. Where events are missing, because they
   * happened meanwhile or were not read in time, it says `missed`.
   */
  watch(o = {}) {
    return watch(this.connection, this.use, o.signal);
  }
  /** Replaces the shell by a fresh one; processes end. */
  async reset() {
    await this.use((session_id) => this.connection.call("session.reset", { session_id }));
  }
  async rename(name) {
    await this.use((session_id) => this.connection.call("session.rename", { session_id, name }));
    this.#name = name;
  }
  /** Moves the session to another node of the cluster, while nothing runs in it. Returns what the new node could not take of its state. */
  async move(node) {
    return (await this.use((session_id) => this.connection.call("session.move", { session_id, node }))).state_lost ?? [];
  }
  /** Changes what createSession has set. `labels` take the place of all earlier ones. */
  async update(o) {
    const { labels, commandTimeoutMs, idleTimeoutMs } = o;
    const changes = { labels, timeout_s: seconds(commandTimeoutMs), idle_timeout_s: seconds(idleTimeoutMs) };
    await this.use((session_id) => this.connection.call("session.update", { session_id, ...changes }));
  }
  /** Ends the session and returns when all its processes are gone. */
  async destroy(o = {}) {
    await this.use((session_id) => this.connection.call("session.destroy", { session_id, ...o.force && { force: true } }));
  }
  async [Symbol.asyncDispose]() {
    await this.destroy();
  }
  /** Calls a function with the session's id, for one request. */
  use = (ask) => ask(this.#id);
  identify(id, name) {
    this.#id = id;
    this.#name = name;
  }
  /** An exec.run that ends when the signal aborts. */
  async endedBy(signal, params) {
    const canceller = new Canceller(signal);
    try {
      const answer = this.connection.call("exec.run", params, { signal: canceller.unsent.signal, sent: canceller.sent });
      const r = await Promise.race([answer, canceller.late]);
      if (signal.aborted) throw signal.reason;
      return r;
    } finally {
      canceller.done();
    }
  }
  async follow(command, o) {
    const { onOutput, ...rest } = o;
    if (o.clean) throw new TypeError("clean works only on a whole result: not with onOutput or a large stdin");
    const running = this.execStream(command, rest);
    if (!onOutput) return running.result();
    for await (const event of running) {
      if (event.type !== "stdout" && event.type !== "stderr") continue;
      try {
        onOutput(event.type, event.data);
      } catch (error) {
        await running.kill().catch(() => {
        });
        throw error;
      }
    }
    return running.result();
  }
};
var endingTime2 = 6e3;
var Canceller = class {
  constructor(signal) {
    this.signal = signal;
    this.late = new Promise((_, reject) => this.reject = reject);
    this.late.catch(() => {
    });
    signal.addEventListener("abort", this.abort);
  }
  signal;
  /** Aborted if the request was not sent: nothing has to be ended. */
  unsent = new AbortController();
  /** Rejected with the signal's reason if the command takes too long to end. */
  late;
  request;
  over = new AbortController();
  reject;
  sent = (link, id) => {
    this.request = { link, id };
    if (this.signal.aborted) this.cancel();
  };
  done() {
    this.signal.removeEventListener("abort", this.abort);
    this.over.abort();
  }
  abort = () => {
    const { reason } = this.signal;
    if (!this.request) {
      this.unsent.abort(reason);
      return;
    }
    this.cancel();
    void pause(endingTime2, this.over.signal).then(() => this.reject(reason));
  };
  cancel() {
    const { link, id } = this.request;
    if (!link.loss) link.send("exec.cancel", { request_id: id });
  }
};

// src/sandbox.ts
async function connect(o) {
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
async function ownSession(connection, name) {
  try {
    const made = await connection.call("session.create", { name: name ?? "default", if_exists: "return" }, { repeat: "always" });
    return { id: made.session_id, name: made.name };
  } catch (error) {
    if (!(error instanceof ForbiddenError)) throw error;
  }
  const { principal } = await connection.call("system.capabilities", {});
  const shared = principal.share?.session_id;
  if (shared !== void 0 && (name === void 0 || name === shared)) return { id: shared };
  try {
    return await find(connection, name ?? "default");
  } catch (error) {
    if (name !== void 0 || !(error instanceof SessionNotFoundError)) throw error;
    return { id: "", name: "default" };
  }
}
async function find(connection, nameOrId) {
  let info;
  try {
    info = await connection.call("session.info", { session: nameOrId });
  } catch (error) {
    if (!(error instanceof SessionNotFoundError)) throw error;
    info = await connection.call("session.info", { session_id: nameOrId });
  }
  return { id: info.session_id, name: info.name };
}
function createParams(o) {
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
    request_key: newKey()
  };
}
var Sandbox = class extends Session {
  /** @internal */
  constructor(connection, wanted, id, name) {
    super(connection, /* @__PURE__ */ new Map(), id, name);
    this.wanted = wanted;
  }
  wanted;
  gone = false;
  finding;
  use = async (ask) => {
    if (this.gone) await (this.finding ??= this.find().finally(() => this.finding = void 0));
    const { id } = this;
    try {
      return await ask(id);
    } catch (error) {
      const ended = error instanceof SessionTerminatedError || error instanceof SessionNotFoundError;
      if (ended && id === this.id) this.gone = true;
      throw error;
    }
  };
  async find() {
    const { id, name } = await ownSession(this.connection, this.wanted);
    this.identify(id, name);
    this.gone = false;
  }
  async createSession(o = {}) {
    const made = await this.connection.call("session.create", createParams(o));
    return new Session(this.connection, this.hubs, made.session_id, made.name);
  }
  /** createSession and openTerminal in one request. If the terminal cannot be opened, no session is made. */
  async createSessionWithTerminal(o, terminal) {
    const opened2 = await createWithTerminal(this.connection, createParams(o), terminal);
    return { session: new Session(this.connection, this.hubs, opened2.made.session_id, opened2.made.name), terminal: opened2.terminal };
  }
  /** A session that is there, by its name or its id. */
  async getSession(nameOrId) {
    const { id, name } = await find(this.connection, nameOrId);
    return new Session(this.connection, this.hubs, id, name);
  }
  async listSessions(o = {}) {
    return (await this.connection.call("session.list", o)).sessions;
  }
  async deleteSession(nameOrId, o = {}) {
    await (await this.getSession(nameOrId)).destroy(o);
  }
  /** Sends any request of the protocol. It is repeated after a lost connection only if that does no harm. */
  call(method, params, o = {}) {
    return this.connection.call(method, params, o);
  }
  /** Calls a listener for every event of this name that is not output. The function that it returns ends that. */
  on(event, listener) {
    return this.connection.on(event, listener);
  }
  /** Closes the connection. Sessions, commands, processes and terminals go on. */
  async close() {
    await this.connection.close();
  }
  async [Symbol.asyncDispose]() {
    await this.close();
  }
};

// src/shell.ts
function shell(session) {
  return {
    async run({ commands, timeoutMs, maxOutputLength }) {
      const output = [];
      for (const command of commands) {
        const { stdout, stderr, exitCode, timedOut } = await session.exec(command, { timeout: timeoutMs });
        output.push({ stdout, stderr, outcome: timedOut ? { type: "timeout" } : { type: "exit", exitCode } });
        if (timedOut) break;
      }
      return { output, ...maxOutputLength !== void 0 && { maxOutputLength } };
    }
  };
}
export {
  AuthError,
  ClosedError,
  Command,
  CommandError,
  ConnectionLostError,
  ForbiddenError,
  InvalidParamsError,
  LimitError,
  NotFoundError,
  OutcomeUnknownError,
  Process,
  ProcessExitedBeforeReadyError,
  ProcessReadyTimeoutError,
  Sandbox,
  Session,
  SessionBusyError,
  SessionExistsError,
  SessionNotFoundError,
  SessionTerminatedError,
  Terminal,
  TrlError,
  afterSending,
  connect,
  refusal,
  shell
};
