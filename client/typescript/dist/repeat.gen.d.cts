import type { Methods } from "./wire.gen.cjs";
/** When a client may send a request again after it has lost the connection on which it waited for the answer. protocol/repeat.go has the rules. */
export declare const repeats: Record<keyof Methods, "never" | "always" | "keyed" | "end">;
