import { ask } from "./dialog";
import { h } from "./dom";
import { plural } from "./format";
import { nodeLabels, nodeState, type Nodes } from "./nodes";
import type { Methods, Node } from "./wire";

/** Where a session is made: on a node, on any node with a label, or ({}) where there is room. */
export type Place = Pick<Methods["session.create"][0], "node" | "where">;

/** Asks on which node to make a session; undefined if the person cancels. */
export async function askPlace(nodes: Nodes): Promise<Place | undefined> {
  await nodes.refresh();
  const labels = new Map<string, number>(); // how many nodes with this label take sessions
  for (const node of nodes.list) for (const label of nodeLabels(node)) labels.set(label, (labels.get(label) ?? 0) + Number(nodeState(node) === "ready"));
  const select = h(
    "select",
    { attr: { id: "place", autofocus: true } },
    option({}, "where there is room"),
    h("optgroup", { attr: { label: "On the node" } }, ...nodes.list.map((node) => option({ node: node.node }, nodeWords(node), nodeState(node) !== "ready"))),
    labels.size > 0 && h("optgroup", { attr: { label: "On a node with the label" } }, ...[...labels].sort().map(([label, n]) => option({ where: pair(label) }, `${label} · ${n ? plural(n, "node") : "no node that takes sessions"}`, n === 0))),
  );
  const answer = await ask({ title: "New session", body: [h("label", { attr: { for: "place" } }, "Place"), select], yes: "Make it" });
  return answer === "yes" ? (JSON.parse(select.value) as Place) : undefined;
}

function option(place: Place, words: string, disabled = false): HTMLOptionElement {
  return h("option", { attr: { value: JSON.stringify(place), disabled } }, words);
}

function nodeWords(node: Node): string {
  const state = nodeState(node);
  return `${node.node} · ${state === "ready" ? `${node.active_sessions} of ${node.max_sessions} sessions` : state}`;
}

function pair(label: string): Record<string, string> {
  const at = label.indexOf("=");
  return { [label.slice(0, at)]: label.slice(at + 1) };
}
