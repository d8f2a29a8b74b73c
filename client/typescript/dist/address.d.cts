import { TrlError } from "./errors.cjs";
/** Turns an address as people write it into that of the WebSocket. */
export declare function endpoint(raw: string | URL): URL;
/** A token as a subprotocol, for runtimes whose WebSocket cannot send headers. */
export declare function tokenProtocol(token: string): string;
/**
 * Asks why an upgrade failed: a WebSocket does not say. A plain request to the same address does, unless we are a page of another origin. Undefined if
 * dialling again may help.
 */
export declare function whyRefused(socket: URL, token: string | undefined, signal: AbortSignal): Promise<TrlError | undefined>;
