// Routes that need a login are requested below the path of the login's cookie. The login page keeps that path in this store. Pages on
// other ports of the same host, to which browsers would send a cookie for the path /, have another store.

const form = /^\/at\/[0-9a-f]+\/$/;

/** The address of a route that needs a login. Without a login the page uses it, too: there may be a certificate, or no authentication. */
export function at(path: string): string {
  let base = "";
  try {
    base = localStorage.getItem("trl.at") ?? "";
  } catch {
    // no storage
  }
  return (form.test(base) ? base : "/at/-/") + path;
}
