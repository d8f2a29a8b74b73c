/** How many bytes of a stream may wait in this client for their reader. */
export declare const windowBytes: number;
