// What needs a login is asked for below the path that the login's cookie is for. The login page keeps that path in this store: pages of
// other ports of the same host, to which browsers would send a cookie of every path, have another.

const form = /^\/at\/[0-9a-f]+\/$/;

/** The address of what needs a login. Who is not logged in asks too: a certificate may do, or nobody may need to be. */
export function at(path: string): string {
  let base = "";
  try {
    base = localStorage.getItem("trl.at") ?? "";
  } catch {
    // no storage
  }
  return (form.test(base) ? base : "/at/-/") + path;
}
