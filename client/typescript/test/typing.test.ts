// Keys that are typed at terminals: in frames without an answer, and what comes of them when somebody else types, a frame is refused or a connection is lost.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import * as trl from "../dist/index.js";
import { inputFrame } from "../src/inputframe.ts";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

let rig: Rig;
let gateway: Gateway;
let sandbox: trl.Sandbox;

const clients: trl.Sandbox[] = [];
const sessions: trl.Session[] = [];
const states: trl.ConnectionState[] = [];

/** What the sockets of a client have sent. */
class Sent {
  frames = 0;
  /** The data of its requests with input. */
  readonly requests: string[] = [];
  /** Frames get lost on their way. */
  lossy = false;
  /** Answers to attaches wait for it. */
  late: Promise<void> | undefined;
  /** The connection is lost with the request that has this data. */
  losing: string | undefined;
  readonly WebSocket: typeof WebSocket;

  constructor(protocols = ["trl.v1+bin", "trl.v1"]) {
    const sent = this;
    this.WebSocket = class extends WebSocket {
      constructor(url: string | URL, all: string[]) {
        super(url, [...protocols, ...all.filter((name) => !name.startsWith("trl.v1"))]);
      }
      private readonly attaches = new Set<unknown>();
      private held = false; // an answer to an attach waits
      override set onmessage(receive: (message: MessageEvent) => void) {
        super.onmessage = (message: MessageEvent) => {
          const { late } = sent;
          const id = typeof message.data === "string" ? (JSON.parse(message.data) as { id?: number }).id : undefined;
          if (this.attaches.has(id)) this.held = true;
          if (late && this.held && (id === undefined || this.attaches.has(id))) void late.then(() => receive(message)); // and the output behind it
          else receive(message);
        };
      }
      override send(data: string | ArrayBuffer): void {
        if (typeof data !== "string") {
          sent.frames++;
          if (sent.lossy) return;
        } else {
          const { id, method, params } = JSON.parse(data) as { id: number; method: string; params: { data: string } };
          if (method === "term.input") sent.requests.push(params.data);
          if (method === "term.attach") this.attaches.add(id);
          if (method === "term.input" && params.data === sent.losing) {
            sent.losing = undefined;
            this.close(3000);
            return;
          }
        }
        super.send(data);
      }
    } as unknown as typeof WebSocket;
  }
}

/** A terminal whose output is read until it is left. */
class Reader {
  text = "";
  readonly refused: Error[] = [];
  attached = 0;
  readonly terminal: trl.Terminal;
  private readonly decoder = new TextDecoder();

  constructor(terminal: trl.Terminal) {
    this.terminal = terminal;
    void this.read().catch(() => {}); // the terminal was left
  }

  private async read(): Promise<void> {
    for await (const event of this.terminal) {
      if (event.type === "data") this.text += this.decoder.decode(event.bytes, { stream: true });
      if (event.type === "refused") this.refused.push(event.error);
      if (event.type === "attached") this.attached++;
    }
  }

  async until(text: string): Promise<void> {
    await until(() => this.text.includes(text), () => `${JSON.stringify(text)} in ${JSON.stringify(this.text.slice(-300))}, refused: ${this.refused.join()}`);
  }
}

async function until(ok: () => boolean, what: () => string): Promise<void> {
  for (const end = Date.now() + 60_000; !ok(); ) {
    assert.ok(Date.now() < end, `not in time: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** A session of a client of its own. */
async function own(sent: Sent, to = gateway): Promise<trl.Session> {
  const client = await trl.connect({ url: to.url, token: to.tokens.user!, WebSocket: sent.WebSocket, onState: (state) => states.push(state) });
  const session = await client.createSession();
  clients.push(client);
  sessions.push(session);
  return session;
}

/** A terminal of a client of its own that prints what is typed. */
async function echo(sent: Sent, cmd = "cat", to = gateway): Promise<Reader> {
  const session = await own(sent, to);
  const reader = new Reader(await session.openTerminal({ cols: 80, rows: 24, history: true, cmd: `stty raw -echo; echo ready; exec ${cmd}` }));
  await reader.until("ready\n");
  reader.text = "";
  return reader;
}

describe("typing", () => {
  before(async () => {
    rig = await startRig();
    gateway = await startGateway(rig.url);
    sandbox = await trl.connect({ url: gateway.url, token: gateway.tokens.user! });
  });
  after(async () => {
    await sandbox.close();
    await rig.stop();
  });
  afterEach(async () => {
    for (const session of sessions.splice(0)) await session.destroy({ force: true }).catch(() => {});
    for (const client of clients.splice(0)) await client.close();
    states.length = 0;
  });

  test("numbers beyond 32 bits", () => {
    const frame = inputFrame(2 ** 33 + 5, 2 ** 52 + 300, Uint8Array.of(7, 8));
    const read = (at: number): [bigint, number] => {
      let value = 0n;
      for (let shift = 0n; ; shift += 7n) {
        const byte = frame[at++]!;
        value |= BigInt(byte & 0x7f) << shift;
        if (byte < 0x80) return [value, at];
      }
    };
    const [no, second] = read(1);
    const [offset, rest] = read(second);
    assert.deepEqual([frame[0], no, offset, ...frame.subarray(rest)], [4, 2n ** 33n + 5n, 2n ** 52n + 300n, 7, 8]);
    assert.deepEqual([...inputFrame(127, 128, Uint8Array.of())], [4, 127, 128, 1]);
  });

  test("keys go in frames, in their order with what is written", async () => {
    const sent = new Sent();
    const reader = await echo(sent);
    const { terminal } = reader;
    const keys = [..."one, zwölf, 漢字 🙂\t"];
    for (const key of keys) await terminal.type(key);
    await reader.until(keys.join(""));
    assert.deepEqual([sent.frames, sent.requests], [keys.length, []]);

    void terminal.type("a");
    const written = terminal.write("b");
    const shared = new Uint8Array([0x63]);
    void terminal.type(shared);
    shared[0] = 0x3f;
    void terminal.type("d");
    const more = terminal.write("e".repeat(100_000));
    void terminal.type("f");
    await Promise.all([written, more]);
    await terminal.type("g.");
    await reader.until(`abcd${"e".repeat(100_000)}fg.`);
    assert.deepEqual(sent.requests.map(({ length }) => length), [0, 1, 0, 65_536, 34_464]);
    await terminal.takeOver(); // the stream gets another number
    void terminal.type("h");
    await terminal.type("i");
    await reader.until("fg.hi");
    assert.equal(sent.requests.length, 5);
    void terminal.takeOver();
    for (const key of "jklmnopq") await terminal.type(key);
    await reader.until("hijklmnopq");
    assert.deepEqual(reader.refused, []);
  });

  test("somebody else types meanwhile", async () => {
    const sent = new Sent();
    const reader = await echo(sent);
    const { terminal } = reader;
    let all = "";
    const writing: Promise<void>[] = [];
    const written = new Set([""]);
    for (let i = 0; i < 300; i++) {
      const key = `${i} `;
      all += key;
      if (i % 50 === 49) {
        written.add(key);
        writing.push(terminal.write(key));
      } else writing.push(terminal.type(key));
      if (i % 10 === 5) void sandbox.call("term.input", { term_id: terminal.id, data: "X" });
      if (i % 3 === 0) await pause(1);
    }
    await Promise.all(writing);
    await reader.until("299 ");
    await until(() => reader.text.replaceAll("X", "").length >= all.length && reader.text.split("X").length === 31, () => reader.text);
    assert.equal(reader.text.replaceAll("X", ""), all);
    assert.deepEqual(reader.refused, []);
    assert.ok(sent.requests.some((data) => !written.has(data)), "no frame was refused");
    assert.ok(sent.frames > 10, `${sent.frames} frames`);
  });

  test("a key is refused while control is being taken", async () => {
    const reader = await echo(new Sent());
    const { terminal } = reader;
    await sandbox.call("term.input", { term_id: terminal.id, data: "X" });
    void terminal.type("a"); // it is refused
    void terminal.takeOver();
    await terminal.type("b");
    await reader.until("b");
    await terminal.type("c");
    await reader.until("c");
    assert.equal(reader.text, "Xabc");
    assert.deepEqual(reader.refused, []);
  });

  test("more is refused than is kept", async () => {
    const reader = await echo(new Sent());
    const { terminal } = reader;
    await sandbox.call("term.input", { term_id: terminal.id, data: "X" });
    for (const key of "abc") void terminal.type(key.repeat(30_000));
    await until(() => reader.refused.length > 0, () => "refused");
    await terminal.type("d");
    await reader.until("Xd");
    assert.ok(reader.refused.length === 1 && reader.refused[0] instanceof trl.TrlError && reader.refused[0].code === "OFFSET_MISMATCH", reader.refused.join());
  });

  test("a frame that is refused is told once", async () => {
    const sent = new Sent();
    const reader = await echo(sent, "sleep 600");
    const watching = new Reader(await sessions[0]!.attachTerminal(reader.terminal.id, { mode: "view" }));
    await until(() => watching.attached > 0, () => "attached");
    for (const key of "xyz") await watching.terminal.type(key);
    await until(() => watching.refused.length > 0, () => "refused");
    await assert.rejects(watching.terminal.type("z"), trl.ForbiddenError);
    assert.ok(watching.refused.length === 1 && watching.refused[0] instanceof trl.ForbiddenError, watching.refused.join());
  });

  test("more than waits for a program", async () => {
    const sent = new Sent();
    const reader = await echo(sent, "sh -c 'while [ ! -e go ]; do sleep 0.05; done; exec cat'");
    const { terminal } = reader;
    for (let i = 0; i < 40; i++) void terminal.type("k".repeat(60_000)).catch(() => {});
    await until(() => reader.refused.length > 0, () => "refused");
    await assert.rejects(terminal.type("k".repeat(60_000)), (e) => e instanceof trl.LimitError && e.limit === "stdin");
    assert.equal(reader.refused.length, 1);
    assert.ok(reader.refused[0] instanceof trl.LimitError);
    await sessions[0]!.exec("touch go");
    const taken = () => reader.text.length;
    await until(() => taken() >= 900_000, () => `${taken()}`);
    await terminal.type(" on").catch(() => terminal.write(" on"));
    await reader.until("k on");
    assert.equal(taken() % 60_000, 3);
  });

  test("keys that get lost with their connection are named, and not typed again", async () => {
    const sent = new Sent();
    const reader = await echo(sent);
    const { terminal } = reader;
    await terminal.type("before ");
    await reader.until("before ");
    await gateway.do("drop");
    await until(() => reader.attached === 2, () => "attached again");
    await terminal.type("between ");
    await reader.until("between ");
    assert.deepEqual([reader.refused, sent.requests], [[], []]);
    sent.lossy = true;
    await terminal.type("lo");
    await terminal.type("st");
    sent.lossy = false;
    await gateway.do("drop");
    await until(() => reader.refused.length > 0, () => "refused");
    await terminal.type("after");
    await reader.until("after");
    assert.equal(reader.text, "before between after");
    assert.ok(reader.refused.length === 1 && reader.refused[0] instanceof trl.ConnectionLostError && reader.refused[0].outcome === "unknown", reader.refused.join());

    await gateway.do("cut");
    await until(() => states.at(-1)?.kind === "down", () => "down");
    const waits = [terminal.type("x"), terminal.type("y"), terminal.write("z"), terminal.type("!")];
    await gateway.do("mend");
    await Promise.all(waits);
    await reader.until("afterxyz!");
    assert.equal(reader.refused.length, 1);
  });

  test("keys that get lost while nobody reads are named before more is typed", async () => {
    for (const more of ["write", "type"] as const) {
      const sent = new Sent();
      const session = await own(sent);
      const terminal = await session.openTerminal({ cols: 80, rows: 24, history: true, windowBytes: 1024, cmd: "stty raw -echo; printf %600s; touch ready; exec cat" });
      await session.exec("while [ ! -e ready ]; do sleep 0.01; done; rm ready");
      await terminal.type("before ");
      sent.lossy = true;
      await terminal.type("lost ");
      sent.lossy = false;
      await gateway.do("drop");
      await until(() => states.some(({ kind }) => kind === "down"), () => "down");
      await terminal[more]("after"); // 600 bytes wait for a reader, so nothing is attached yet
      const reader = new Reader(terminal);
      await reader.until("after");
      assert.ok(reader.text.endsWith("before after"), reader.text);
      assert.ok(reader.refused.length === 1 && reader.refused[0] instanceof trl.ConnectionLostError, `${more}: ${reader.refused.join()}`);
      states.length = 0;
    }
  });

  test("the answer to an attach comes after that to a later write", async () => {
    const sent = new Sent();
    const reader = await echo(sent);
    const { terminal } = reader;
    await terminal.write("ab");
    const attached = Promise.withResolvers<void>();
    sent.late = attached.promise;
    await gateway.do("drop");
    await terminal.write("cd");
    attached.resolve();
    await until(() => reader.attached === 2, () => "attached again");
    sent.late = undefined;
    sent.losing = "efg";
    await terminal.write("efg");
    await reader.until("g");
    assert.equal(reader.text, "abcdefg");
  });

  test("gateways are killed and upgraded under a typist", async () => {
    const own = await startGateway(rig.url);
    try {
      const sent = new Sent();
      const reader = await echo(sent, "cat", own);
      const { terminal } = reader;
      const rejected = new Map<number, unknown>();
      const typing: Promise<void>[] = [];
      let over = false;
      const faults = (async () => {
        for (let i = 0; i < 9; i++) {
          await pause(100 + 200 * Math.random());
          await own.do(["kill", "drop", "upgrade"][i % 3]!);
        }
        over = true;
      })();
      for (let i = 0; !over || sent.frames <= i / 10; i++) { // on a busy machine there is no connection for most of the time
        assert.ok(i < 100_000, `${sent.frames} frames of ${i}`);
        typing.push(terminal.type(`<${i}>`).catch((error) => void rejected.set(i, error)));
        await pause(2);
      }
      await faults;
      await Promise.all(typing);
      await terminal.write("end");
      await reader.until("end");
      const came = [...reader.text.matchAll(/<(\d+)>/g)].map((match) => Number(match[1]));
      assert.deepEqual(came, [...new Set(came)].sort((a, b) => a - b), "twice, or out of order");
      const there = new Set(came);
      let runs = 0; // of keys that went in frames and got lost
      for (let i = 0, lost = false; i < typing.length; i++) {
        const was = lost;
        lost = !there.has(i) && !rejected.has(i);
        if (lost && !was) runs++;
        const error = rejected.get(i);
        if (rejected.has(i)) assert.ok(error instanceof trl.ConnectionLostError && !(there.has(i) && error.outcome === "unsent"), `${i}: ${error}`);
      }
      assert.ok(runs <= reader.refused.length, `${runs} times keys got lost, and this was told: ${reader.refused.join()}`);
      for (const error of reader.refused) assert.ok(error instanceof trl.ConnectionLostError, String(error));
      assert.ok(reader.attached >= 3 && sent.frames > typing.length / 10, `${sent.frames} frames of ${typing.length}, ${reader.attached} times attached`);
    } finally {
      for (const client of clients.splice(0)) await client.close();
      sessions.length = 0;
      await own.do("stop");
    }
  });

  test("a server that takes no frames gets requests, not one for each key", async () => {
    const sent = new Sent(["trl.v1"]);
    const reader = await echo(sent);
    const keys = "the quick brown fox jumps over the lazy dog.";
    for (const key of keys) void reader.terminal.type(key);
    await reader.until(keys);
    assert.equal(sent.requests.join(""), keys);
    assert.ok(sent.frames === 0 && sent.requests.length <= 3, sent.requests.join("|"));
  });
});
