import type { Link } from "./link.cjs";
import type { Pong } from "./wire.gen.cjs";
/** How soon a connection that brings nothing is noticed. All times are in ms. */
export interface Pace {
    /** Between two looks at the link. */
    tick: number;
    /** Without a message for this time, a ping is sent. */
    askAfter: number;
    /** A ping is sent at least this often. */
    askEvery: number;
    /** A ping without an answer for this time is reported. */
    quietAfter: number;
    /** A server that has sent nothing for this time is gone or stopped. */
    silence: number;
}
/** The server pings every 20 s, and answers our pings: longer than two of them it is gone. */
export declare const defaultPace: Pace;
export interface Pulse {
    /** The time (ms) from a ping to its answer. */
    latency?(ms: number): void;
    /** The server's answer to a ping. */
    pong?(pong: Pong): void;
    /** A ping has no answer: the time (ms) since the last message. 0: a message has come again. */
    quiet?(ms: number): void;
}
/**
 * Pings over one link while it lives, and gives it up when it is silent. It counts silence in ticks, and not by the clock alone, because a program that
 * slept or was busy has received nothing either.
 */
export declare class Heartbeat {
    private readonly link;
    private readonly pace;
    private readonly pulse;
    private timer;
    private ticks;
    private heardAt;
    private askedAt;
    private asking;
    private told;
    constructor(link: Link, pace: Pace, pulse?: Pulse);
    /** Sends a ping and answers with the epoch of the server. */
    ask(): Promise<string>;
    start(): void;
    stop(): void;
    private beat;
}
