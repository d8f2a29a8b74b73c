import type { Connection } from "./connection.cjs";
import { ConnectionLostError, TrlError } from "./errors.cjs";
import type { Link, Sink } from "./link.cjs";
import type * as wire from "./wire.gen.cjs";
/** Where input goes in frames. */
interface Attached {
    link: Link;
    sink: Sink;
    streamId: string;
}
/**
 * The input of one terminal: what is written, in requests, and what is typed, in frames without an answer.
 *
 * Frames are sent while the server has told where they begin and no request of ours is in flight. After one that is refused come no more, and the server
 * refuses those that were on their way, until a request is answered. It says where frames go on.
 */
export declare class Typing {
    private readonly connection;
    private readonly termId;
    /** Tells that input which was sent in frames was not taken. */
    private readonly tell;
    private readonly input;
    private at;
    private next;
    private kept;
    private keptSize;
    private heard;
    private paused;
    private refusing;
    private again;
    private waiting;
    constructor(connection: Connection, termId: () => string, 
    /** Tells that input which was sent in frames was not taken. */
    tell: (error: TrlError | ConnectionLostError) => void, inputEnd: number | undefined);
    /** Writes in requests, after everything that was typed. */
    write(data: string | Uint8Array): Promise<void>;
    /** Sends text in one request on the connection of now, after everything that was typed. It does not wait for room. */
    send(data: string | Uint8Array): Promise<void>;
    /** Sends keys, in a frame if possible. */
    type(data: string | Uint8Array): Promise<void>;
    /** Frames can be sent on this link, from offset on if the server takes any. */
    attached(at: Attached, offset: number | undefined): void;
    /** Tells whether the frames of a lost link did not all arrive before anything else of ours: the server had so much input. */
    private arrived;
    /** The terminal is being attached anew on its link: its stream gets another number, so no frame can be sent until resume. */
    pause(): void;
    /** Goes on after pause. The link and the offset are those of the new attach, if the server has answered it. */
    resume(link?: Link, offset?: number): void;
    /** A frame was refused, and so are those behind it. */
    refused(link: Link, { offset, error }: wire.InputRefused): void;
    private sendFrame;
    private forget;
    private typeNow;
    /** Sends input in a request on this link. */
    private ask;
    /** Sends a piece of what is written. */
    private request;
    /**
     * Returns when all frames were taken, or sent again. The answer to an empty request comes after all refusals. If the link was lost, the answer to one over
     * the next link says what has arrived; the terminal may be attached there later.
     */
    private settle;
    private sendAgain;
    /** A request with input was answered. An older server does not say where frames begin. */
    private taken;
}
export {};
