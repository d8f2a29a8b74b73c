// Numbers as people read them.

/** 0.4 s, 12 s, 3:07, 1:02:09, 2 d 4 h */
export function duration(ms: number): string {
  if (ms < 1000) return ms < 1 ? "0 ms" : `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  const pad = (n: number) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${pad(s % 60)}`;
  if (s < 86_400) return `${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}`;
  return `${Math.floor(s / 86_400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** The age of something, in one unit: now, 42 s, 12 min, 3 h, 2 d */
export function age(since: string, now = Date.now()): string {
  const s = Math.max(0, (now - Date.parse(since)) / 1000);
  if (s < 5) return "now";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** 812 B, 4.2 KB, 31 MB: powers of 1024, as ps and free count. */
export function bytes(n: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  return `${u > 0 && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[u]}`;
}

/** 3, 3.4, 1,204 */
export function count(n: number): string {
  return n < 10 && !Number.isInteger(n) ? n.toFixed(1) : Math.round(n).toLocaleString("en");
}

/** The first line of a command, for places with room for one. */
export function firstLine(command: string): string {
  const line = command.trim().split("\n", 1)[0] ?? "";
  return line.length < command.trim().length ? `${line} …` : line;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}
