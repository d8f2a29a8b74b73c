// Serves the page, and gets its tickets: the gateway's token stays here. A ticket opens one connection, once.
import { readFile } from "node:fs/promises";
import { createServer, type ServerResponse } from "node:http";
import { stripTypeScriptTypes } from "node:module";
import process from "node:process";

const { TRL_URL: gateway = "http://127.0.0.1:7681", TRL_TOKEN: token = "", PORT: port = "8080" } = process.env;
const here = (path: string) => readFile(new URL(`.${path}`, import.meta.url), "utf8");

async function answer(method: string, path: string, response: ServerResponse): Promise<void> {
  if (path === "/") {
    response.setHeader("Content-Type", "text/html").end((await here("/index.html")).replace("GATEWAY", gateway));
  } else if (path === "/terminal.js") {
    response.setHeader("Content-Type", "text/javascript").end(stripTypeScriptTypes(await here("/terminal.ts")));
  } else if (path === "/config") {
    response.end(JSON.stringify({ gateway }));
  } else if (path === "/ticket" && method === "POST") {
    // Here a real server asks who its visitor is.
    const made = await fetch(`${gateway}/v1/tickets`, { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    response.writeHead(made.status).end(((await made.json()) as { ticket: string }).ticket);
  } else if (/^\/node_modules\/@xterm\/[\w/-]+\.(mjs|css)$/.test(path)) {
    response.setHeader("Content-Type", path.endsWith("css") ? "text/css" : "text/javascript").end(await here(path));
  } else {
    response.writeHead(404).end();
  }
}

const server = createServer((request, response) => {
  answer(request.method!, request.url!, response).catch((error: unknown) => {
    console.error(error);
    response.destroy();
  });
});
server.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));
