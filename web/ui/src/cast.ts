// A recording as the player uses it: an asciicast, v3 or v2, with absolute times. docs/recordings.md describes the content.

export interface CastEvent {
  at: number; // ms since the beginning
  code: string; // o output, r size, m mark, x exit status; a player ignores others
  data: string;
}

export interface CastMark {
  at: number;
  label: string;
  index: number; // of its event
}

export interface Cast {
  cols: number;
  rows: number;
  events: CastEvent[];
  marks: CastMark[];
}

export function parseCast(text: string): Cast {
  const [first = "", ...lines] = text.split("\n");
  const header = JSON.parse(first) as { version: number; width?: number; height?: number; term?: { cols: number; rows: number } };
  if (header.version !== 2 && header.version !== 3) throw new Error("not an asciicast of version 2 or 3");
  const cast: Cast = { cols: header.term?.cols ?? header.width ?? 80, rows: header.term?.rows ?? header.height ?? 24, events: [], marks: [] };
  let at = 0;
  for (const line of lines) {
    if (!line || line.startsWith("#")) continue;
    const [time, code, data] = JSON.parse(line) as [number, string, string];
    at = header.version === 3 ? at + Math.round(time * 1000) : Math.round(time * 1000);
    if (code === "m") cast.marks.push({ at, label: data, index: cast.events.length });
    cast.events.push({ at, code, data });
  }
  return cast;
}

export function sizeOf(event: CastEvent): { cols: number; rows: number } | undefined {
  const [cols, rows] = event.data.split("x").map(Number);
  return cols! > 0 && rows! > 0 ? { cols: cols!, rows: rows! } : undefined;
}

/** The time of each event, with pauses cut to at most `pause`. */
export function timesOf(cast: Cast, pause: number): number[] {
  let before = 0;
  let at = 0;
  return cast.events.map((event) => {
    at += Math.min(event.at - before, pause);
    before = event.at;
    return at;
  });
}

/** 0:07, 12:03, 1:02:09 */
export function clock(ms: number): string {
  const s = Math.floor(ms / 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
