/** A command line for a POSIX shell: a text as it is, or a list of words, each quoted. */
export declare function commandLine(command: string | readonly string[]): string;
/** Quotes also A=b, which would be an assignment, and =ls, which zsh replaces by a path. */
export declare function quote(word: string): string;
