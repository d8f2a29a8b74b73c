import { type Pace, type Pulse } from "./heartbeat.js";
import { Link, type Follower, type Sink } from "./link.js";
import type * as wire from "./wire.gen.js";
export interface ConnectionOptions {
    /** `http://HOST:PORT`, `https://…`, or the address of the WebSocket itself. */
    url: string | URL;
    /** A token or a JWT. */
    token?: string | undefined;
    /** Gets a ticket before each dial, for pages that must not have a token. */
    ticket?: (() => Promise<string>) | undefined;
    /**
     * For how long (ms) a lost connection is dialled, 45 s by default; counted anew when somebody first needs it. Afterwards each call that needs one makes
     * one attempt.
     */
    patience?: number | undefined;
    /** The class to use where the runtime has none, such as that of `ws`. */
    WebSocket?: typeof globalThis.WebSocket | undefined;
    onState?: ((state: ConnectionState) => void) | undefined;
}
export interface ConnectionState {
    /** `down`: it is being dialled again. `closed`: it was given up, and the next call tries once more; or it was closed for good. */
    kind: "up" | "down" | "closed";
    why?: string;
    /** The number of the failed dial since it was lost. */
    attempt?: number;
    /** `down`: ms until the next dial. */
    retryIn?: number;
    /** The code with which the server closed the connection that was lost; 1006 if it did not close it. */
    code?: number;
    /** `closed`: why no other dial would help. */
    error?: Error;
}
type Params<M extends keyof wire.Methods> = wire.Methods[M]["params"];
type Result<M extends keyof wire.Methods> = wire.Methods[M]["result"];
export interface CallOptions {
    signal?: AbortSignal | undefined;
    /** What to do if the connection is lost before the answer. By default the method and its params decide. */
    repeat?: "always";
    sink?: Sink;
    /** Told of each sending. */
    sent?: (link: Link, id: number) => void;
}
/** A connection to a gateway that is made again when it is lost. */
export declare class Connection {
    private readonly o;
    private readonly pace;
    private readonly pulse;
    /** Of the server at the last dial: another one means that the sessions of before are gone. */
    epoch: string;
    private readonly socketUrl;
    private readonly patience;
    private link;
    private dialling;
    private until;
    private missed;
    private wait;
    private closed;
    private failure;
    private readonly closing;
    private readonly listeners;
    private readonly followers;
    private heart;
    private hurry;
    private readonly siblings;
    constructor(o: ConnectionOptions, pace?: Pace, pulse?: Pulse);
    /** Dials for the first time. */
    open(signal?: AbortSignal): Promise<void>;
    /** Dials now, for another time of our patience, if there is no connection: also after an end that seemed to be final. */
    retry(): void;
    /** A live link. It waits for one that is being dialled. */
    connected(signal?: AbortSignal): Promise<Link>;
    /** Somebody needs a connection. The time of our patience counts from the first time, because until then nobody waited. */
    private miss;
    /** The live link, if there is one now. */
    get current(): Link | undefined;
    /**
     * Sends a request, and again if the connection is lost before the answer and that does no harm. A keyed request is not repeated in another epoch: the
     * new server knows neither its key nor its session.
     */
    call<M extends keyof wire.Methods>(method: M, params: Params<M> | (() => Params<M>), o?: CallOptions): Promise<Result<M>>;
    /** For one request: whether it may be sent again because the node of a cluster that it is for could not be reached. */
    nodeWait(): {
        passes(error: unknown, signal?: AbortSignal): Promise<boolean>;
    };
    /** Calls a listener for every event of this name. */
    on<E extends keyof wire.Events>(event: E, listener: (data: wire.Events[E]) => void): () => void;
    /** Listens to a stream that no sink of a request gets, over all connections: a watched session sends streams that nobody attached. */
    follow(streamId: string, follower: Follower): () => void;
    close(): Promise<void>;
    /** Another connection to the same gateway, for what must not wait for the streams of this one. It ends with this one at the latest. */
    sibling(onState: (state: ConnectionState) => void): Connection;
    /** Ends a sibling. */
    drop(sibling: Connection): Promise<void>;
    private become;
    /** Makes one connection, and asks it for its epoch: something else than trl might listen at the address. */
    private dial;
    private openSocket;
    /** Starts to dial for a lost connection, or joins in. */
    private redial;
    /** Dials until our patience ends, at least once. */
    private dialAgain;
    private rest;
    /** Whether this end of a dial would come again. */
    private isFinal;
    private lost;
    /** Starts the time of our patience, or continues that of an earlier loss if the link brought nothing. False if no time is left. */
    private noteLoss;
    private tell;
}
export {};
