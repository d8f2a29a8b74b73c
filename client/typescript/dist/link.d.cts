import { TrlError } from "./errors.cjs";
import { type Chunk } from "./frame.cjs";
import type * as wire from "./wire.gen.cjs";
/** What a stream's output goes to, in its order. */
export interface Follower {
    chunk(chunk: Chunk): void;
    gap(from: number, to: number): void;
}
/** What the output and the events of a stream go to that a request of ours opened or attached. */
export interface Sink extends Follower {
    /** The answer that opened or attached the stream; nothing of the stream came before. */
    opened(answer: Record<string, unknown>): void;
    /** Any other event of the stream; the last one is its exit. */
    event(name: string, data: Record<string, unknown>): void;
    /** The link died before the exit. */
    lost(): void;
    /** Another request has taken over the stream on this link: nothing more comes. */
    displaced(): void;
}
/** How a link ended, and whether another one may be dialled. */
export interface Loss {
    code: number;
    why: string;
    final: boolean;
    /** What the server said of the connection. */
    error?: TrlError;
}
/**
 * One WebSocket: its requests in flight and its streams. It is open from the beginning and dies once; Connection makes the next one.
 */
export declare class Link {
    private readonly socket;
    private readonly tell;
    private readonly died;
    private readonly follower;
    /** Why it died; undefined while it lives. */
    loss: Loss | undefined;
    /** Output has come, or an answer other than that of the first ping: the server did something for us. */
    useful: boolean;
    readonly since: number;
    heardAt: number;
    private nextId;
    private readonly calls;
    private readonly streams;
    private readonly numbers;
    private readonly numberOf;
    private readonly terminals;
    private readonly left;
    private opening;
    constructor(socket: WebSocket, tell: (event: string, data: Record<string, unknown>) => void, died: (link: Link) => void, follower: (stream: string) => Follower | undefined);
    /**
     * Sends a request. The sink gets the stream that the answer names; it is in place before the stream's first frame. The id is for exec.cancel.
     */
    call<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"], sink?: Sink): {
        id: number;
        answer: Promise<wire.Methods[M]["result"]>;
    };
    /** Sends a request whose answer does not matter. */
    send<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"]): void;
    /** Sends input for a stream in a binary frame, which gets no answer. False: it was not sent, because this sink does not have the stream now. */
    sendInput(streamId: string, sink: Sink, offset: number, bytes: Uint8Array): boolean;
    /** Takes a sink off its stream, and has the server asked to send no more of it, unless another sink has the stream now. */
    leave(streamId: string, sink: Sink, detach: () => void): void;
    /** It waits while a request for a stream is in flight: that may be for a stream that was left, and the server must get it last. */
    private detachLeft;
    /** Ends the link. The promise resolves when the other side has said goodbye, or after a second. */
    close(): Promise<void>;
    /** Gives up a socket that did not close by itself. */
    abandon(why: string): void;
    private end;
    private receive;
    private settle;
    /** Notes the number of a stream in binary frames. An attach that is repeated may give another one. */
    private number;
    private forget;
    private notify;
    private deliver;
    private followerOf;
    private die;
    private lostError;
}
