import type { Connection } from "./connection";
import { guestToken } from "./guest";
import { Signal } from "./signal";
import type { Node, SessionInfo } from "./wire";

// The nodes of the cluster, as the gateway that answers knows them. Without a cluster there are none, and nothing is requested. A view that shows them
// requests them again and again.
export class Nodes {
  readonly changed = new Signal<void>();
  list: Node[] = [];

  constructor(private readonly connection: Connection) {
    connection.status.on((status) => status.kind === "up" && void this.refresh());
    connection.nodeChanged.on(() => this.changed.emit());
  }

  /** Whether the gateway is a node of a cluster. */
  get clustered(): boolean {
    return this.connection.node !== "" && !guestToken;
  }

  /** The node that answers; "" without a cluster. */
  get self(): string {
    return this.connection.node;
  }

  /** The directory does not work: nodes are shown as they were known, and new names cannot be claimed. */
  get degraded(): boolean {
    return this.connection.degraded;
  }

  async refresh(): Promise<void> {
    if (!this.connection.up) return;
    if (!this.clustered) {
      if (this.list.length) this.keep([]);
      return;
    }
    try {
      this.keep((await this.connection.call("system.nodes", {})).nodes);
    } catch {
      // without a connection the last list stays
    }
  }

  private keep(list: Node[]): void {
    this.list = list;
    this.changed.emit();
  }
}

/** Whether a node takes new sessions, in words; `ready` if it does. */
export function nodeState(node: Node): string {
  if (node.unreachable) return "cannot be reached";
  if (node.draining) return "draining";
  if (node.max_sessions === 0) return "no sessions";
  return node.active_sessions >= node.max_sessions ? "full" : "ready";
}

/** The labels of a node as `key=value`, its zone among them. */
export function nodeLabels({ zone, labels = {} }: Node): string[] {
  return pairs({ ...(zone && { zone }), ...labels });
}

/** Labels as `key=value`, in order. */
export function pairs(labels: Record<string, string> = {}): string[] {
  return Object.entries(labels).map(([key, value]) => `${key}=${value}`).sort();
}

/** What the name of a session's node says when it is pointed at: also the labels that the session was made with, which each of its nodes must have. */
export function nodeTitle({ where }: SessionInfo, silent = false): string {
  const only = pairs(where).join(" ");
  return `the node of the session${silent ? ", which does not answer" : ""}${only && `; it stays on nodes with ${only}`}`;
}
