import type { Link } from "./link.ts";
import type { Pong } from "./wire.gen.ts";

/** How soon a connection that brings nothing is noticed. All times are in ms. */
export interface Pace {
  /** Between two looks at the link. */
  tick: number;
  /** Without a message for this time, a ping is sent. */
  askAfter: number;
  /** A ping is sent at least this often. */
  askEvery: number;
  /** A ping without an answer for this time is reported. */
  quietAfter: number;
  /** A server that has sent nothing for this time is gone or stopped. */
  silence: number;
}

/** The server pings every 20 s, and answers our pings: longer than two of them it is gone. */
export const defaultPace: Pace = { tick: 5_000, askAfter: 20_000, askEvery: Infinity, quietAfter: 25_000, silence: 45_000 };

export interface Pulse {
  /** The time (ms) from a ping to its answer. */
  latency?(ms: number): void;
  /** The server's answer to a ping. */
  pong?(pong: Pong): void;
  /** A ping has no answer: the time (ms) since the last message. 0: a message has come again. */
  quiet?(ms: number): void;
}

/**
 * Pings over one link while it lives, and gives it up when it is silent. It counts silence in ticks, and not by the clock alone, because a program that
 * slept or was busy has received nothing either.
 */
export class Heartbeat {
  private timer: ReturnType<typeof setInterval> | undefined;
  private ticks = 0; // since the last message
  private heardAt: number;
  private askedAt = 0;
  private asking = false;
  private told = false; // that it is quiet

  constructor(
    private readonly link: Link,
    private readonly pace: Pace,
    private readonly pulse: Pulse = {},
  ) {
    this.heardAt = link.heardAt;
  }

  /** Sends a ping and answers with the epoch of the server. */
  async ask(): Promise<string> {
    const sent = (this.askedAt = performance.now());
    this.asking = true;
    try {
      const pong = await this.link.call("system.ping", {}).answer;
      this.pulse.latency?.(performance.now() - sent);
      this.pulse.pong?.(pong);
      return pong.epoch;
    } finally {
      this.asking = false;
    }
  }

  start(): void {
    this.timer = setInterval(() => this.beat(), this.pace.tick);
  }

  stop(): void {
    clearInterval(this.timer);
  }

  private beat(): void {
    const now = performance.now();
    const since = now - this.link.heardAt;
    const quietTicks = Math.ceil(this.pace.quietAfter / this.pace.tick);
    this.ticks++;
    if (this.heardAt !== this.link.heardAt) {
      this.heardAt = this.link.heardAt;
      this.ticks = 0;
      if (this.told) this.pulse.quiet?.(0);
      this.told = false;
    }
    if (!this.asking) {
      this.ticks = Math.min(this.ticks, quietTicks - 1); // nobody was asked
      if (since >= this.pace.askAfter || now - this.askedAt >= this.pace.askEvery) this.ask().catch(() => {}); // the loss is reported elsewhere
    } else if (this.ticks >= quietTicks && since > this.pace.silence) this.link.abandon("the gateway has gone silent");
    else if (this.ticks >= quietTicks) {
      this.told = true;
      this.pulse.quiet?.(since);
    }
  }
}
