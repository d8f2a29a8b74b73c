// A share link has its token in the fragment, which browsers never send. The page removes the token from the address at once and keeps it in this
// tab's storage: a reload finds it, another tab does not.

const storeKey = "trl.share";

/** The token of the share link that opened this page, or the empty string. */
export const guestToken = location.pathname === "/share" ? take() : "";

// When the person pastes another link into the address bar, the browser does not load the page again.
if (guestToken) addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());

function take(): string {
  const fresh = /^#token=([\w.-]+)$/.exec(location.hash)?.[1];
  try {
    if (fresh) {
      sessionStorage.clear(); // its views belong to another link
      sessionStorage.setItem(storeKey, fresh);
    }
    return fresh ?? sessionStorage.getItem(storeKey) ?? "none";
  } catch {
    return fresh ?? "none";
  } finally {
    if (fresh) history.replaceState(null, "", location.pathname);
  }
}
