/** One gateway of the rig, and what can be done to it. */
export interface Gateway {
  /** Of the proxy in front of it. */
  url: string;
  /** Of the gateway itself. */
  direct: string;
  tokens: Record<string, string>;
  /** Where its sessions start. */
  home: string;
  do(action: string): Promise<Record<string, unknown>>;
}

/** What a gateway is started with; see the request `/start` of the rig. */
export interface GatewayOptions {
  args?: string[];
  nodes?: number;
}

export async function startGateway(rig: string, options: GatewayOptions = {}): Promise<Gateway> {
  const started = (await post(`${rig}/start`, options)) as Omit<Gateway, "do"> & { id: string };
  return { ...started, do: (action) => post(`${rig}/${started.id}/${action}`, {}) as Promise<Record<string, unknown>> };
}

async function post(url: string, body: unknown): Promise<unknown> {
  const answer = await fetch(url, { method: "POST", body: JSON.stringify(body) });
  const data = (await answer.json()) as Record<string, unknown>;
  if (!answer.ok) throw new Error(`${url}: ${data.error}`);
  return data;
}
