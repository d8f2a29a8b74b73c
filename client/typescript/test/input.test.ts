// What is written to commands, processes and terminals arrives once, whatever becomes of the connection meanwhile.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, describe, test } from "node:test";
import * as trl from "../dist/index.js";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

let rig: Rig;
let gateway: Gateway;
let other: trl.Sandbox;

interface Request {
  id: number;
  method: string;
  params: { data: string; offset?: number; exec_id: string };
}

/** What becomes of a request with input. `part`: the gateway gets only three bytes, and like after `after` the answer is lost. */
type Fate = "before" | "after" | "part" | ((request: Request) => void | Promise<unknown>);

/** Requests with input that a client has sent, and what becomes of them. */
class Inputs {
  readonly offsets: (number | undefined)[] = [];
  readonly WebSocket: typeof WebSocket;

  /** The fates go by the request's number, from 0 on, or by its data, once. */
  constructor(fates: Record<string, Fate> = {}) {
    const inputs = this;
    this.WebSocket = class extends WebSocket {
      override send(data: string | ArrayBuffer): void {
        if (typeof data !== "string") return super.send(data); // keys
        const request = JSON.parse(data) as Request;
        if (!/\.input$/.test(request.method)) return super.send(data);
        const fate = fates[inputs.offsets.length] ?? fates[request.params.data];
        delete fates[request.params.data];
        inputs.offsets.push(request.params.offset);
        if (typeof fate === "function") {
          void Promise.resolve(fate(request)).then((passes) => (passes ? super.send(data) : this.lose()));
          return;
        }
        if (fate === "part") request.params.data = request.params.data.slice(0, 3);
        if (fate !== "before") super.send(JSON.stringify(request));
        if (fate) this.lose();
      }
      private lose(): void {
        this.onmessage = null; // Deno would bring the answer while the socket closes
        this.close(3000);
      }
    } as unknown as typeof WebSocket;
  }
}

/** Lines of 64 bytes. */
const lines = (n: number) => Array.from({ length: n }, (_, i) => `${i}`.padEnd(63, "~")).join("\n") + "\n";
const sum = (text: string) => `${createHash("sha256").update(text).digest("hex")}  -\n`;
const piece = 64 << 10;

async function use(inputs: Inputs, test: (session: trl.Session) => Promise<void>, o: Partial<trl.ConnectOptions> = {}): Promise<void> {
  const sandbox = await trl.connect({ url: gateway.url, token: gateway.tokens.user!, WebSocket: inputs.WebSocket, ...o });
  const session = await sandbox.createSession();
  try {
    await test(session);
  } finally {
    await (await other.getSession(session.id)).destroy({ force: true });
    await sandbox.close();
  }
}

describe("input", () => {
  before(async () => {
    rig = await startRig();
    gateway = await startGateway(rig.url);
    other = await trl.connect({ url: gateway.url, token: gateway.tokens.user! });
  });
  after(async () => {
    await other.close();
    await rig.stop();
  });

  test("what was lost is sent again where it was", async () => {
    const inputs = new Inputs({ 1: "before", 3: "after", 5: "part", 7: "after", 8: "after" });
    await use(inputs, async (session) => {
      const text = lines(20_000);
      assert.equal((await session.exec("sha256sum", { stdin: text })).stdout, sum(text));
      assert.deepEqual(inputs.offsets.slice(0, 8), [0, 1, 1, 2, 2, 3, 3, 3].map((n, i) => n * piece + (i === 7 ? 3 : 0)));
    });
  });

  test("the last piece and the end are lost", async () => {
    const fates: Record<number, Fate>[] = [{ 1: "after" }, { 1: "part" }, { 1: "after", 2: "after" }];
    for (const lost of fates) {
      await use(new Inputs(lost), async (session) => {
        const process = await session.startProcess("sha256sum", { stdin: "open" });
        const text = lines(500);
        await process.write(text);
        await process.write("end\n");
        await process.closeStdin();
        await process.waitForExit();
        assert.equal((await process.getLogs()).stdout, sum(text + "end\n"));
      });
    }
  });

  test("a terminal's, too, with keys in between", async () => {
    await use(new Inputs({ "two\n": "after", "three\n": "before", "four\n": "part", "five\n": "after" }), async (session) => {
      const terminal = await session.openTerminal({ cols: 80, rows: 24, cmd: "stty -echo; echo ready; cat >typed; sha256sum <typed" });
      let text = "";
      const read = (async () => {
        for await (const event of terminal) if (event.type === "data") text += new TextDecoder().decode(event.bytes);
      })();
      read.catch(() => {}); // awaited below
      while (!text.includes("ready")) await new Promise((resolve) => setTimeout(resolve, 10));
      for (const [i, what] of ["one\n", "two\n", "three\n", "four\n", "five\n"].entries()) {
        await terminal.write(what);
        await terminal.type(`${i}\n`);
      }
      await terminal.write("\x04");
      await read;
      assert.match(text, new RegExp(sum("one\n0\ntwo\n1\nthree\n2\nfour\n3\nfive\n4\n").trim()));
    });
  });

  test("of a process that somebody else has started, from the second piece on", async () => {
    const inputs = new Inputs({ 2: "after" });
    await use(inputs, async (session) => {
      const started = await (await other.getSession(session.id)).startProcess("cat", { stdin: "open" });
      await started.write("1234");
      const process = await session.getProcess(started.id);
      for (const text of ["567", "89", "abcd"]) await process!.write(text);
      await process!.closeStdin();
      await process!.waitForExit();
      assert.equal((await process!.getLogs()).stdout, "123456789abcd");
      assert.deepEqual(inputs.offsets, [undefined, 7, 9, 9, 13]);
    });
  });

  test("somebody else gives input meanwhile", async () => {
    const intrude = ({ params: { exec_id } }: Request) => other.call("exec.input", { exec_id, data: "#".repeat(piece + 1) });
    const passing = new Inputs({ 1: intrude });
    await use(passing, async (session) => { // no answer is lost: the piece is sent again behind it
      const text = lines(1_500) + "\n";
      const command = session.execStream("cat", { stdin: "open" });
      await command.write(text);
      await command.closeStdin();
      assert.equal((await command.result()).stdout, text.slice(0, piece) + "#".repeat(piece + 1) + text.slice(piece));
      assert.deepEqual(passing.offsets.slice(0, 3), [0, piece, 2 * piece + 1]);
    });
    const lost = new Inputs({ 1: async (request) => void (await intrude(request)) });
    await use(lost, async (session) => { // nobody can say what was taken: such a command must not go on
      await assert.rejects(session.exec("cat >/dev/null", { stdin: lines(20_000) }), { name: "ConnectionLostError", outcome: "unknown" });
      assert.equal((await session.info()).state, "IDLE");
    });
  });

  test("the outcome is unknown without a connection", async () => {
    await use(new Inputs({ 1: () => gateway.do("cut").then(() => undefined) }), async (session) => {
      const process = await session.startProcess("cat", { stdin: "open" });
      await process.write("one");
      await assert.rejects(process.write("two"), { name: "ConnectionLostError", outcome: "unknown" });
      await gateway.do("mend");
      await process.write("three");
      await process.closeStdin();
      await process.waitForExit();
      assert.match((await process.getLogs()).stdout, /^one(two)?three$/);
    }, { patience: 3_000 });
  });

  test("a server that knows no offsets", async () => {
    const inputs = new Inputs();
    inputs.WebSocket.prototype.send = ((send) => function (this: WebSocket, data: string) {
      const { id, method, params } = JSON.parse(data) as Request;
      if (!/\.input$/.test(method) || params.offset === undefined) return send.call(this, data);
      inputs.offsets.push(params.offset);
      const error = { code: "INVALID_PARAMS", message: "unknown field", details: { field: "offset" } };
      queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify({ id, ok: false, error }) })));
    })(inputs.WebSocket.prototype.send as (data: string) => void) as WebSocket["send"];
    await use(inputs, async (session) => {
      const text = lines(20_000);
      assert.equal((await session.exec("sha256sum", { stdin: text })).stdout, sum(text));
      assert.deepEqual(inputs.offsets.filter((offset) => offset !== undefined), [0]);
    });
  });
});
