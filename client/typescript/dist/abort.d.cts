/** Waits for a promise until a signal aborts; then rejects with the signal's reason. The promise's own work goes on. */
export declare function until<T>(signal: AbortSignal | undefined, promise: Promise<T>): Promise<T>;
/** Waits for a time, or until a signal aborts; it never rejects. */
export declare function pause(ms: number, signal?: AbortSignal): Promise<void>;
