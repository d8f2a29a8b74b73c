/** A command line for a POSIX shell: a text as it is, or a list of words, each quoted. */
export declare function commandLine(command: string | readonly string[]): string;
export declare function quote(word: string): string;
