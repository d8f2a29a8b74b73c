// Who comes over a share link brings its token in the fragment, which browsers send to nobody. It is taken out of the address at once and
// kept for this tab alone, so that a reload finds it and another tab does not.

const storeKey = "trl.share";

/** The token of the link that this page was opened with; empty: the page is its owner's. */
export const guestToken = location.pathname === "/share" ? take() : "";

// Another link, pasted where this page is: the browser loads nothing for that.
if (guestToken) addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());

function take(): string {
  const fresh = /^#token=([\w-]+)$/.exec(location.hash)?.[1];
  try {
    if (fresh) {
      sessionStorage.clear(); // what another link had open here
      sessionStorage.setItem(storeKey, fresh);
    }
    return fresh ?? sessionStorage.getItem(storeKey) ?? "none";
  } catch {
    return fresh ?? "none";
  } finally {
    if (fresh) history.replaceState(null, "", location.pathname);
  }
}

/** How a WebSocket, which has no headers, brings it. */
export function guestProtocols(): string[] {
  return guestToken ? [`trl.token.${btoa(guestToken).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`] : [];
}

/** Whether the gateway says that the link opens nothing any more. */
export async function linkEnded(): Promise<boolean> {
  try {
    return (await fetch("/share", { method: "POST", headers: { Authorization: `Bearer ${guestToken}` } })).status === 401;
  } catch {
    return false;
  }
}
