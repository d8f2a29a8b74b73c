import { AuthError, ForbiddenError, LimitError, TrlError } from "./errors.ts";

/** Turns an address as people write it into that of the WebSocket. */
export function endpoint(raw: string | URL): URL {
  const url = new URL(raw);
  const scheme = { "http:": "ws:", "https:": "wss:", "ws:": "ws:", "wss:": "wss:" }[url.protocol];
  if (!scheme) throw new TypeError(`${raw}: want http://HOST:PORT or https://HOST:PORT`);
  const path = url.pathname === "/" ? "/v1/ws" : url.pathname;
  return new URL(`${scheme}//${url.host}${path}`); // without a query: the server refuses a token in an address
}

/** A token as a subprotocol, for runtimes whose WebSocket cannot send headers. */
export function tokenProtocol(token: string): string {
  const bytes = new TextEncoder().encode(token);
  const base64 = btoa(String.fromCharCode(...bytes));
  return `trl.token.${base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/**
 * Asks why an upgrade failed: a WebSocket does not say. A plain request to the same address does, unless we are a page of another origin. Undefined if
 * dialling again may help.
 */
export async function whyRefused(socket: URL, token: string | undefined, signal: AbortSignal): Promise<TrlError | undefined> {
  const url = new URL(socket);
  url.protocol = url.protocol === "wss:" ? "https:" : "http:";
  let answer: Response;
  let words: string;
  try {
    answer = await fetch(url, { headers: token === undefined ? {} : { Authorization: `Bearer ${token}` }, signal });
    words = (await answer.text()).trim();
  } catch {
    return undefined;
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
  return undefined; // a balancer without a server behind it, or a server that has come up meanwhile
}
