// A terminal in a page: it outlives lost connections and reloads, and a flood of output costs no more memory than one window.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { connect, NotFoundError } from "@trl/client";

const screen = new Terminal();
const fit = new FitAddon();
screen.loadAddon(fit);
screen.open(document.querySelector<HTMLElement>("#screen")!);
fit.fit();

const { gateway } = (await (await fetch("/config")).json()) as { gateway: string };
const sandbox = await connect({
  url: gateway,
  ticket: async () => (await fetch("/ticket", { method: "POST" })).text(), // our server has the token, and this page has not
  patience: Infinity,
  onState: (state) => (document.title = state.kind === "up" ? "terminal" : `terminal (${state.why})`),
});

const size = { cols: screen.cols, rows: screen.rows };
const before = sessionStorage.getItem("terminal"); // of this tab, before it was loaded again
const terminal = await (before ? sandbox.attachTerminal(before, size) : Promise.reject(new NotFoundError("none", "TERM_NOT_FOUND"))).catch((error) => {
  if (!(error instanceof NotFoundError)) throw error;
  return sandbox.openTerminal(size);
});
sessionStorage.setItem("terminal", terminal.id);

let replay = false;
const notTyped = (error: Error) => screen.write(`\r\n[not typed: ${error.message}]\r\n`);
screen.onData((text) => replay || terminal.type(text).catch(notTyped));
screen.onResize(({ cols, rows }) => void terminal.resize(cols, rows).catch(() => {})); // the next attach tells the size
addEventListener("resize", () => fit.fit());
screen.focus();

for await (const event of terminal) {
  if (event.type === "data") {
    replay = event.replay; // queries in it were answered when they were new
    if (event.snapshot) screen.reset();
    await new Promise<void>((drawn) => screen.write(event.bytes, drawn)); // the server sends no more than a window ahead of this
    replay = false;
  } else if (event.type === "gap") screen.write(`\r\n[${event.to - event.from} bytes are no longer kept]\r\n`);
  else if (event.type === "refused") notTyped(event.error);
  else if (event.type === "exit") screen.write(`\r\n[the shell has ended: ${event.signal ?? event.exitCode}]\r\n`);
}
sessionStorage.removeItem("terminal");
