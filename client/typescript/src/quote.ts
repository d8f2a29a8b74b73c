/** A command line for a POSIX shell: a text as it is, or a list of words, each quoted. */
export function commandLine(command: string | readonly string[]): string {
  return typeof command === "string" ? command : command.map(quote).join(" ");
}

/** Quotes also A=b, which would be an assignment, and =ls, which zsh replaces by a path. */
export function quote(word: string): string {
  return /^[\w@%+:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
