// A share link has its token in the fragment, which browsers send to nobody. The page removes it from the address at once and
// keeps it for this tab alone, so that a reload finds it and another tab does not.

const storeKey = "trl.share";

/** The token of the share link that opened this page; empty: there is none. */
export const guestToken = location.pathname === "/share" ? take() : "";

// Another link is pasted into the address bar: the browser does not load the page again for that.
if (guestToken) addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());

function take(): string {
  const fresh = /^#token=([\w-]+)$/.exec(location.hash)?.[1];
  try {
    if (fresh) {
      sessionStorage.clear(); // the views of another link
      sessionStorage.setItem(storeKey, fresh);
    }
    return fresh ?? sessionStorage.getItem(storeKey) ?? "none";
  } catch {
    return fresh ?? "none";
  } finally {
    if (fresh) history.replaceState(null, "", location.pathname);
  }
}
