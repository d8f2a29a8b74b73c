/** How many bytes of a stream may wait in this client for their reader. */
export const windowBytes = 1 << 20;
