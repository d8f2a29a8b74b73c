// Measures a command by the client, beside a bare WebSocket: `make bench-clients` starts it and says what to connect to.
import process from "node:process";
import { connect } from "../dist/index.js";

const { TRL_ECHO, TRL_URL, TRL_ROUNDS, TRL_BLOCK } = process.env;

/** A WebSocket, and a function that sends a message and returns the next one. */
async function dial(url: string): Promise<{ socket: WebSocket; ask: (message: string) => Promise<string> }> {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  const ask = (message: string) =>
    new Promise<string>((resolve) => {
      socket.onmessage = ({ data }) => resolve(data as string);
      socket.send(message);
    });
  return { socket, ask };
}

const echo = await dial(TRL_ECHO!);
const bare = await dial(`${TRL_URL}/v1/ws`);
const sandbox = await connect({ url: TRL_URL! });
const session = await sandbox.createSession({ shell: "/bin/bash" });
let key = 0;
/** What the client sends, too: the key costs the server something. */
const message = () => JSON.stringify({ id: 1, method: "exec.run", params: { session_id: session.id, command: "true", request_key: `bare-${key++}` } });

const times = { echo: [] as number[], bare: [] as number[], client: [] as number[], cpu: { echo: [] as number[], bare: [] as number[], client: [] as number[] } };
const measure = async (what: "echo" | "bare" | "client", act: () => Promise<unknown>) => {
  const before = process.cpuUsage();
  for (let n = 0; n < Number(TRL_BLOCK); n++) {
    const began = performance.now();
    await act();
    times[what].push(1000 * (performance.now() - began));
  }
  const { user, system } = process.cpuUsage(before);
  times.cpu[what].push((user + system) / Number(TRL_BLOCK));
};
for (let round = 0; round < Number(TRL_ROUNDS); round++) {
  await measure("echo", () => echo.ask(message()));
  await measure("bare", () => bare.ask(message()));
  await measure("client", () => session.exec("true"));
}
console.log(JSON.stringify(times));
echo.socket.close();
bare.socket.close();
await session.destroy();
await sandbox.close();
