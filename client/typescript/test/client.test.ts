import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import * as trl from "../dist/index.js";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

let rig: Rig;
let gateway: Gateway;
let sandbox: trl.Sandbox;

const sessions: trl.Session[] = [];

/** A session of this test's own. */
async function newSession(o?: trl.SessionOptions): Promise<trl.Session> {
  const session = await sandbox.createSession(o);
  sessions.push(session);
  return session;
}

const connect = (o: Partial<trl.ConnectOptions> = {}) => trl.connect({ url: gateway.url, token: gateway.tokens.user!, ...o });

describe("client", () => {
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
    for (const session of sessions.splice(0)) await session[Symbol.asyncDispose]();
  });

  // CLIENTS, part 8, but for the import and connect.
  test("the program of the plan runs as printed", async () => {
    writeFileSync(
      join(gateway.home, "start-server.sh"),
      `#!/bin/sh
python3 -c 'import time; time.sleep(600)' &
python3 -c 'import time; time.sleep(600)' &
echo $$ $(jobs -p) >pids
echo starting
python3 -m http.server --bind 127.0.0.1 "$PORT"
`,
      { mode: 0o755 },
    );
    const port = 20_000 + Math.floor(Math.random() * 20_000);
    const result = await sandbox.exec("printf hello; printf oops >&2; exit 3");
    assert.deepEqual([result.stdout, result.stderr, result.exitCode, result.success], ["hello", "oops", 3, false]);

    const server = await sandbox.startProcess("./start-server.sh", { env: { PORT: String(port) } });
    await server.waitForPort(port, { timeout: 60_000 });
    let first: string | undefined;
    for await (const event of server.streamLogs()) {
      first = event.data;
      break;
    }
    assert.equal(first, "starting\n");
    await server.kill();
    assert.equal(server.status, "killed");
    await sandbox.exec("n=0; while kill -0 $(cat pids) 2>/dev/null && [ $n -lt 100 ]; do n=$((n+1)); sleep 0.1; done"); // until the dead are reaped
    const left = await sandbox.exec("for pid in $(cat pids); do kill -0 $pid && echo $pid; done 2>/dev/null");
    assert.equal(left.stdout, "");

    const session = await sandbox.createSession({ cwd: "/tmp", env: { MODE: "x" } });
    await session.exec("export API_KEY=secret");
    assert.equal((await session.exec("echo $API_KEY $PWD")).stdout, "secret /tmp\n");

    const [a, b] = await Promise.all([session.exec("sleep 0.2; echo first"), session.exec("echo second")]);
    assert.deepEqual([a.stdout, b.stdout], ["first\n", "second\n"]);

    const seen: string[] = [];
    for await (const e of session.execStream("for i in 1 2 3; do echo $i; sleep 0.1; done")) seen.push(e.type);
    assert.deepEqual(seen.filter((type, i) => type !== seen[i - 1]), ["start", "stdout", "complete"]); // what is late comes in fewer pieces
    await session.destroy();
  });

  test("an aborted signal sends nothing, and an abort rejects with its reason", async () => {
    const session = await newSession();
    const reason = new Error("no longer wanted");
    await assert.rejects(session.exec("touch never", { signal: AbortSignal.abort(reason) }), reason);
    await assert.rejects(session.execStream("touch never", { signal: AbortSignal.abort(reason) }).result(), reason);
    assert.notEqual((await session.exec("ls never")).exitCode, 0);

    const abort = new AbortController();
    const running = session.execStream("echo begun; sleep 600", { signal: abort.signal });
    await assert.rejects(async () => {
      for await (const e of running) if (e.type === "stdout") abort.abort(reason);
    }, reason);
    assert.equal((await session.info()).state, "IDLE");
    await assert.rejects(session.exec("sleep 600", { signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
    assert.equal((await session.exec("echo on")).stdout, "on\n");
  });

  test("to break out of a stream leaves the command running", async () => {
    const session = await newSession();
    const running = session.execStream("echo one; sleep 0.3; echo two >after; echo two");
    for await (const e of running) if (e.type === "stdout") break;
    assert.throws(() => running[Symbol.asyncIterator](), TypeError);
    assert.equal((await session.exec("cat after")).stdout, "two\n");
  });

  test("a result keeps the beginning and the end", async () => {
    const session = await newSession();
    const small = await session.exec("seq 1 9999", { maxOutputBytes: 20 });
    assert.equal(small.truncated, true);
    const streamed = await session.execStream("seq 1 9999", { maxOutputBytes: 20 }).result();
    assert.equal(streamed.truncated, true);
    assert.deepEqual([streamed.stdout, streamed.omitted], [small.stdout, small.omitted]);
    assert.ok(streamed.stdout.startsWith("1\n2\n") && streamed.stdout.endsWith("9999\n"));
  });

  test("the exit code comes although nobody reads", async () => {
    const session = await newSession();
    const running = session.execStream("head -c 5000000 /dev/zero; exit 7");
    assert.equal(await running.exitCode, 7);
    const quiet = session.execStream("sleep 0.1; exit 8");
    assert.equal(await quiet.exitCode, 8);
    const pieces: string[] = [];
    for await (const piece of running.bytes()) pieces.push(piece.gap ? `${piece.gap.from}` : "bytes");
    assert.equal(pieces[0], "0"); // a gap, from the beginning
    assert.equal((await running.result()).truncated, true);
  });

  test("a command that floods can be ended by its reader", async () => {
    const session = await newSession();
    const running = session.execStream("yes");
    for await (const e of running) if (e.type === "stdout") await running.kill();
    const result = await running.result();
    assert.equal(result.cancelled, true);
    const abort = new AbortController();
    const unread = session.execStream("yes", { signal: abort.signal });
    await unread.id;
    abort.abort(new Error("enough"));
    await assert.rejects(unread.result(), /enough/);
    assert.equal((await session.info()).state, "IDLE");
  });

  test("output goes to a callback as it comes", async () => {
    const [session, other] = [await newSession(), await newSession()];
    const got: string[] = [];
    const came = (n: number) => `came-${n}-${session.id}`;
    const wait = (n: number) => `until [ -e ${came(n)} ]; do sleep 0.05; done`;
    const onOutput = (stream: string, data: string) => void other.exec(`: >${came(got.push(`${stream} ${data}`))}`).catch(() => {}); // the end may come first
    const result = await session.exec(`echo a; ${wait(1)}; echo b >&2; ${wait(2)}; echo c`, { onOutput });
    assert.deepEqual(got, ["stdout a\n", "stderr b\n", "stdout c\n"]);
    assert.deepEqual([result.stdout, result.stderr], ["a\nc\n", "b\n"]);
    await assert.rejects(session.exec("exit 2", { check: true, onOutput: () => {} }), (e) => e instanceof trl.CommandError && e.exitCode === 2);
  });

  test("input that is larger than a frame", async () => {
    const session = await newSession();
    const big = "0123456789abcdef".repeat(400_000);
    assert.equal((await session.exec("wc -c", { stdin: big })).stdout.trim(), "6400000");
  });

  test("variables, processes and what there is", async () => {
    const session = await newSession({ name: `vars-${Date.now()}`, labels: { test: "yes" } });
    await session.setEnvVars({ A: "it's", B: undefined, HOME: null });
    assert.equal((await session.exec("echo $A,${HOME-unset}")).stdout, "it's,unset\n");
    await assert.rejects(session.setEnvVars({ "A B": "" }), TypeError);

    const ended: (number | null)[] = [];
    const printed: string[] = [];
    const p = await session.startProcess(["sh", "-c", "echo up; exit 4"], { name: "short", onOutput: (_, data) => printed.push(data), onExit: (code) => ended.push(code) });
    assert.deepEqual(await p.waitForExit(), { exitCode: 4, timedOut: false });
    const { line, match } = await p.waitForLog(/^u(.)$/);
    assert.deepEqual([line, match?.[1]], ["up", "p"]);
    assert.equal(p.status, "failed");
    assert.ok(p.startTime <= p.endTime!);
    for (const end = Date.now() + 20_000; ended.length === 0 && Date.now() < end; ) await new Promise((r) => setTimeout(r, 5));
    assert.deepEqual([printed, ended], [["up\n"], [4]]);

    await session.startProcess("sleep 600");
    assert.equal(await session.killAllProcesses(), 1);
    assert.deepEqual((await session.listProcesses()).map((q) => q.status), ["failed", "killed"]);
    assert.equal((await session.getProcess(p.id))?.exitCode, 4);
    assert.equal(await session.getProcess("p-none00000"), null);
    await session.update({ labels: { test: "changed" }, commandTimeoutMs: 60_000 });
    const listed = await sandbox.listSessions({ label: "test=changed" });
    assert.deepEqual(listed.map((s) => s.session_id), [session.id]);
    assert.equal((await sandbox.getSession(session.name!)).id, session.id);
    await session.rename(`${session.name}-2`);
    await sandbox.deleteSession(session.name!);
  });

  test("a log reader that does not read holds up no other", async () => {
    const session = await newSession();
    const p = await session.startProcess("echo begin; until [ -e read ]; do sleep 0.05; done; rm read; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end");
    const idle = p.streamLogs();
    assert.equal((await idle.next()).value?.data, "begin\n");
    await session.exec(": >read");
    let bytes = 0;
    for await (const e of p.streamLogs()) bytes += e.data?.length ?? (e.type === "gap" ? e.to - e.from : 0);
    assert.equal(bytes, 3_000_011);
    let rest = 6;
    for await (const e of idle) rest += e.data?.length ?? (e.type === "gap" ? e.to - e.from : 0);
    assert.equal(rest, 3_000_011);
  });

  test("a session is watched, over a cut", async () => {
    const session = await sandbox.createSession();
    const seen: string[] = [];
    const over = (async () => {
      for await (const e of session.watch()) {
        seen.push(e.type);
        if (e.type === "exec.exit" && seen.filter((t) => t === "exec.exit").length === 1) await gateway.do("drop");
      }
    })();
    await until(async () => {
      await session.exec("true");
      return seen.includes("exec.exit");
    });
    const n = () => seen.filter((t) => t === "exec.started").length;
    const before = n();
    await until(async () => {
      await session.exec("true");
      return n() > before;
    });
    await session.destroy();
    await over;
    assert.ok(["session.state", "missed"].includes(seen.at(-1)!)); // missed: it ended before the watch was back
  });

  test("a terminal is watched, and taken over", async () => {
    const session = await newSession();
    const first = await session.openTerminal({ cols: 80, rows: 24, cmd: "stty -echo; echo ready; cat" });
    await reads(first, "ready");
    const other = await connect();
    try {
      const there = await other.getSession(session.id);
      const viewer = await there.attachTerminal(first.id, { mode: "view" });
      await reads(viewer, "ready");
      await assert.rejects(viewer.write("x\n"), trl.ForbiddenError);
      await viewer.takeOver();
      assert.equal(viewer.mode, "control");
      await viewer.write("typed\n");
      await viewer.resize(90, 30);
      assert.equal((await viewer.snapshot()).cols, 90);
      await until(async () => (await viewer.snapshot()).lines.includes("typed"));
      await viewer.close();
    } finally {
      await other.close();
    }
  });

  test("a terminal's bytes go on where an earlier client stopped, at the pace of their reader", async () => {
    const session = await newSession();
    const reading = { history: true, windowBytes: 64 << 10, acknowledge: "manual" } as const;
    const cmd = "stty -echo; echo one; read -r x; echo two; read -r x; head -c 300000 /dev/zero | tr '\\0' x; echo end; cat";
    const earlier = await session.openTerminal({ cols: 80, rows: 24, cmd, ...reading });
    for await (const event of earlier) {
      if (event.type === "attached") assert.deepEqual([event.mode, event.cols, event.offset], ["control", 80, 0]);
      if (event.type === "data" && event.end === "one\r\n".length) break;
    }
    const { claim, offset } = earlier;
    assert.ok(claim);

    const other = await connect();
    try {
      const terminal = await (await other.getSession(session.id)).attachTerminal(earlier.id, { ...reading, claim, since: offset });
      const first = await session.attachTerminal(earlier.id, { mode: "view" });
      let text = "";
      let attached = 0;
      let end = offset;
      let viewers: trl.wire.TermViewer[] = [];
      const events = terminal[Symbol.asyncIterator]();
      const reads = async (done: () => boolean): Promise<void> => {
        while (!done()) {
          const { value: event } = await events.next();
          assert.ok(event);
          if (event.type === "attached") attached++;
          if (event.type === "viewers") viewers = event.viewers;
          if (event.type !== "data") continue;
          assert.equal(event.offset, end);
          end = event.end;
          text += new TextDecoder().decode(event.bytes);
        }
      };
      await reads(() => viewers.length === 2);
      assert.deepEqual(viewers.map((v) => [v.viewer_id, v.mode]).sort(), [[terminal.viewerId, "control"], [first.viewerId, "view"]].sort());
      await terminal.write("\n");
      await reads(() => text.length >= 5);
      assert.equal(text, "two\r\n");

      await gateway.do("drop");
      await reads(() => attached === 2);
      assert.equal(terminal.mode, "control");
      await terminal.write("\n");
      const came = () => end - offset - "two\r\n".length;
      await reads(() => came() >= reading.windowBytes);
      for (let i = 0; i < 10; i++) await other.call("system.ping", {}); // more output would come before the answers
      const more = reads(() => came() > reading.windowBytes + (32 << 10));
      assert.equal(await Promise.race([more.then(() => "more than the window"), other.call("system.ping", {}).then(() => "the window")]), "the window");
      terminal.acknowledge(end);
      await more;
      await reads(() => (terminal.acknowledge(end), text.endsWith("xend\r\n")));
      assert.equal(text.length, "two\r\n".length + 300_000 + "end\r\n".length);
    } finally {
      await other.close();
    }
  });

  test("a request whose outcome is unknown is not repeated", async () => {
    const session = await newSession();
    const own = await connect({ patience: 3_000 });
    const states: string[] = [];
    const ended = own.on("session.state", (e) => states.push(e.to));
    const there = await own.getSession(session.id);
    const p = await there.startProcess("sleep 600");
    await gateway.do("cut");
    await assert.rejects(own.call("process.kill", { process_id: p.id, signal: "CONT" }), trl.ConnectionLostError);
    await assert.rejects(there.info(), trl.ConnectionLostError);
    await gateway.do("mend");
    assert.equal((await there.info()).session_id, session.id); // one more attempt
    ended();
    await own.close();
    await assert.rejects(there.info(), trl.ClosedError);
  });

  test("states are told", async () => {
    const states: trl.ConnectionState[] = [];
    const own = await connect({ onState: (s) => states.push(s) });
    await gateway.do("drop");
    await until(async () => states.filter((s) => s.kind === "up").length === 2);
    await gateway.do("cut");
    await until(async () => states.some((s) => s.kind === "down" && s.attempt === 2));
    await gateway.do("mend");
    await until(async () => states.at(-1)!.kind === "up");
    await own.close();
    assert.deepEqual([states[0]!.kind, states[1]!.kind, states.at(-1)!.kind], ["up", "down", "closed"]);
    assert.deepEqual([states[1]!.attempt, states[1]!.code], [0, 1006]);
    assert.ok(states.every((s) => (s.kind === "down") === (s.retryIn !== undefined)));
    assert.ok(states.find((s) => s.attempt === 2)!.retryIn! > 0);
  });

  test("nobody listens, and a wrong address", async () => {
    await assert.rejects(trl.connect({ url: "http://127.0.0.1:1" }), trl.ConnectionLostError);
    await assert.rejects(trl.connect({ url: "ftp://127.0.0.1" }), TypeError);
    await assert.rejects(trl.connect({ url: rig.url }), (e) => e instanceof trl.TrlError && e.code === "NOT_SUPPORTED");
    await assert.rejects(connect({ signal: AbortSignal.abort(new Error("not now")) }), /not now/);
  });

  test("a ticket in place of a token", async () => {
    let asked = 0;
    const ticket = async () => {
      asked++;
      const answer = await fetch(`${gateway.direct}/v1/tickets`, { method: "POST", headers: { Authorization: `Bearer ${gateway.tokens.user}` } });
      return ((await answer.json()) as { ticket: string }).ticket;
    };
    const own = await trl.connect({ url: gateway.url, ticket });
    await gateway.do("drop");
    assert.equal((await own.exec("echo on")).stdout, "on\n");
    assert.equal(asked, 2);
    await own.close();
  });

  test("close ends what waits", async () => {
    const own = await connect();
    const session = await own.createSession({ onDisconnect: "destroy" });
    const ended = Promise.allSettled([session.exec("sleep 600"), session.execStream("sleep 600").result()]);
    await session.info();
    await own.close();
    for (const outcome of await ended) assert.ok(outcome.status === "rejected" && outcome.reason instanceof trl.ClosedError);
  });

  test("require gives the same", () => {
    const required = createRequire(import.meta.url)("../dist/index.cjs") as typeof trl;
    assert.deepEqual(Object.keys(required).sort(), Object.keys(trl).sort());
  });
});

async function until(ok: () => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 60_000; !(await ok()); ) {
    assert.ok(Date.now() < end, "not in time");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Reads a terminal until it has printed a text. */
async function reads(terminal: trl.Terminal, text: string): Promise<void> {
  const decoder = new TextDecoder();
  const events = terminal[Symbol.asyncIterator]();
  for (let seen = ""; !seen.includes(text); ) {
    const { value, done } = await events.next();
    assert.ok(!done, `the terminal ended before ${text}`);
    if (value.type === "data") seen += decoder.decode(value.bytes, { stream: true });
  }
}
