// How requests, streams and watches end when the connection, the program or the server gets in their way.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import * as trl from "../dist/index.js";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

let rig: Rig;
let gateway: Gateway;
let sandbox: trl.Sandbox;

const sessions: trl.Session[] = [];

/** A session of this test's own. */
async function newSession(): Promise<trl.Session> {
  const session = await sandbox.createSession();
  sessions.push(session);
  return session;
}

const connect = (o: Partial<trl.ConnectOptions> = {}) => trl.connect({ url: gateway.url, token: gateway.tokens.user!, ...o });

describe("endings", () => {
  before(async () => {
    rig = await startRig();
    gateway = await startGateway(rig.url);
    sandbox = await connect();
  });
  after(async () => {
    await sandbox.close();
    await rig.stop();
  });
  afterEach(async () => {
    for (const session of sessions.splice(0)) await session.destroy({ force: true });
  });

  test("a request that a closing socket did not take is sent over the next one", async () => {
    let latest: WebSocket | undefined;
    class Seen extends WebSocket {
      constructor(url: string | URL, protocols?: string | string[]) {
        super(url, protocols);
        latest = this;
      }
    }
    const own = await connect({ WebSocket: Seen });
    const session = await own.getSession((await newSession()).id);
    latest!.close(3000);
    await session.rename(`renamed-${Date.now()}`); // a request that is never repeated
    assert.equal((await own.exec("echo on")).stdout, "on\n");
    await own.close();
  });

  test("a request for a node that cannot be reached is sent again until the patience is over", async () => {
    let refusals = 0;
    class Unreachable extends WebSocket {
      override send(data: string): void {
        const { id, method } = JSON.parse(data) as { id: number; method: string };
        if (method === "system.ping" || refusals <= 0) return super.send(data);
        refusals--;
        const error = { code: "NODE_UNREACHABLE", message: "gone", details: { node: "n2", retry_after_ms: 1 } };
        queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify({ id, ok: false, error }) })));
      }
    }
    const own = await connect({ WebSocket: Unreachable, patience: 3_000 });
    const session = await own.getSession((await newSession()).id);
    refusals = 2;
    await session.rename(`renamed-${Date.now()}`);
    assert.equal(refusals, 0);
    refusals = 2;
    assert.equal(await session.execStream("exit 7").exitCode, 7);
    assert.equal(refusals, 0);
    refusals = Infinity;
    await assert.rejects(session.rename("never"), { code: "NODE_UNREACHABLE" });
    refusals = 0;
    await own.close();
  });

  test("a session and its terminal come in one request, and from an older server in two", async () => {
    for (const older of [false, true]) {
      const asked: string[] = [];
      class Older extends WebSocket {
        override send(data: string): void {
          const { id, method, params } = JSON.parse(data) as { id: number; method: string; params: { terminal?: unknown } };
          asked.push(method);
          if (!params.terminal || !older) return super.send(data);
          const error = { code: "INVALID_PARAMS", message: "unknown field", details: { field: "terminal" } };
          queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify({ id, ok: false, error }) })));
        }
      }
      const own = await connect({ WebSocket: Older });
      asked.length = 0;
      const { session, terminal } = await own.createSessionWithTerminal({ cwd: "/tmp" }, { cols: 80, rows: 24, cmd: "pwd" });
      assert.deepEqual(asked.filter((method) => method !== "stream.ack"), older ? ["session.create", "session.create", "term.open"] : ["session.create"]);
      let text = "";
      for await (const event of terminal) if (event.type === "data") text += new TextDecoder().decode(event.bytes);
      assert.match(text, /\/tmp/);
      await session.destroy();
      await own.close();
    }
  });

  test("the exit code comes over a cut although nobody reads", async () => {
    const [session, other] = [await newSession(), await newSession()];
    const running = session.execStream(`head -c 600000 /dev/zero; until [ -e 'go-${session.id}' ]; do sleep 0.05; done; exit 7`);
    const code = running.exitCode;
    await running.id;
    await gateway.do("settle");
    await gateway.do("drop");
    await other.exec(`: >'go-${session.id}'`);
    assert.equal(await code, 7);
  });

  test("a process that floods is ended by the reader of its output", async () => {
    const session = await newSession();
    const p = await session.startProcess("yes");
    for await (const e of p.streamLogs()) if (e.type === "stdout") await p.kill();
    assert.equal(p.status, "killed");
    const q = await session.startProcess("yes");
    await q.getLogs(); // what there is now, and no more
    await session.killProcess(q.id);
  });

  test("a log reader that gives up at once takes nothing from the next one", async () => {
    const session = await newSession();
    const p = await session.startProcess("sleep 0.5; echo late; sleep 600");
    const abort = new AbortController();
    const first = p.streamLogs({ signal: abort.signal }).next();
    await Promise.resolve();
    abort.abort(new Error("not wanted"));
    await assert.rejects(first, /not wanted/);
    for await (const e of p.streamLogs()) {
      assert.equal(e.data, "late\n");
      break;
    }
  });

  test("output that comes byte by byte takes little memory while nobody reads", async () => {
    const session = await newSession();
    const running = session.execStream("i=0; while [ $i -lt 20000 ]; do printf x; i=$((i + 1)); done");
    await running.id;
    await gateway.do("settle");
    let [pieces, bytes] = [0, 0];
    for await (const piece of running.bytes()) {
      assert.ok(!piece.gap && piece.offset === bytes);
      pieces++;
      bytes += piece.bytes.length;
    }
    assert.equal(bytes, 20_000);
    assert.ok(pieces < 200, `${pieces} pieces`);
  });

  test("what an output callback throws ends the command", async () => {
    const session = await newSession();
    const onOutput = () => {
      throw new Error("mine");
    };
    await assert.rejects(session.exec("echo a; sleep 600", { onOutput }), /mine/);
    assert.equal((await session.info()).state, "IDLE");
  });

  test("a request beyond the server's bound is refused, and the connection goes on", async () => {
    const session = await newSession();
    await assert.rejects(session.exec("#".repeat(5 << 20)), (e) => e instanceof trl.TrlError && e.code === "REQUEST_TOO_LARGE");
    assert.equal((await session.exec("wc -c", { stdin: "\x01".repeat(1 << 20) })).stdout.trim(), String(1 << 20));
  });

  test("a result is refused after an iteration that failed", async () => {
    const session = await sandbox.createSession();
    await session.destroy();
    const running = session.execStream("true");
    await assert.rejects(async () => {
      for await (const _ of running);
    }, trl.SessionTerminatedError);
    await assert.rejects(running.result(), trl.SessionTerminatedError);
  });

  test("a stream that nobody reads holds up no watch", async () => {
    const session = await newSession();
    const events = session.watch()[Symbol.asyncIterator]();
    const first = events.next();
    while (!(await Promise.race([first.then(() => true), session.exec("true").then(() => false)])));
    const unread = session.execStream("head -c 1500000 /dev/zero");
    const id = await unread.id;
    for (let seen = false; !seen; ) {
      const { value, done } = await events.next();
      assert.ok(!done);
      seen = value.type === "exec.exit" && value.data.exec_id === id;
    }
    unread.detach();
    await events.return!();
  });

  test("a watch says which events were not read in time, and ends with the session", async () => {
    const session = await sandbox.createSession();
    const events = session.watch()[Symbol.asyncIterator]();
    const first = events.next();
    while (!(await Promise.race([first.then(() => true), session.exec("true").then(() => false)])));
    for (let n = 0; n < 400; n++) await session.exec("true"); // four events each
    await session.destroy();
    const seen: string[] = [];
    for (let next = await events.next(); !next.done; next = await events.next()) seen.push(next.value.type);
    assert.ok(seen.length <= 1025 && seen.includes("missed"), `${seen.length} ${seen.at(-1)}`);
  });

  test("a watch ends with an error when there is no connection any more", async () => {
    const own = await connect({ patience: 300 });
    const session = await newSession();
    const there = await own.getSession(session.id);
    const events = there.watch()[Symbol.asyncIterator]();
    const first = events.next();
    while (!(await Promise.race([first.then(() => true), session.exec("true").then(() => false)])));
    await gateway.do("cut");
    await assert.rejects(async () => {
      while (!(await events.next()).done);
    }, trl.ConnectionLostError);
    await gateway.do("mend");
    await own.close();
  });

  test("a watch ends, although its session ended while the connection was away", async () => {
    const session = await sandbox.createSession();
    const events = session.watch()[Symbol.asyncIterator]();
    const first = events.next();
    while (!(await Promise.race([first.then(() => true), session.exec("true").then(() => false)])));
    await gateway.do("cut");
    const direct = await trl.connect({ url: gateway.direct, token: gateway.tokens.user! });
    await direct.deleteSession(session.id);
    await direct.close();
    await gateway.do("mend");
    let last: trl.SessionEvent | undefined;
    for (let next = await events.next(); !next.done; next = await events.next()) last = next.value;
    assert.ok(last?.type === "missed" && last.data.state === "TERMINATED");
  });

  test("control that was taken over is kept over a cut", async () => {
    const session = await newSession();
    const first = await session.openTerminal({ cols: 80, rows: 24, cmd: "cat" });
    const other = await connect();
    const viewer = await (await other.getSession(session.id)).attachTerminal(first.id, { mode: "view" });
    await viewer.takeOver();
    let screens = 0;
    const read = (async () => {
      for await (const e of viewer) screens += Number(e.type === "data" && e.snapshot);
    })();
    await gateway.do("settle");
    const before = screens;
    await gateway.do("drop");
    while (screens === before) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(viewer.mode, "control");
    await viewer.close();
    await read;
    await other.close();
  });
});
