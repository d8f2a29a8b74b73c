import "./nonce";
import { Banner } from "./banner";
import { Connection } from "./connection";
import { button, h } from "./dom";
import { guestToken } from "./guest";
import { icon } from "./icons";
import { Keys } from "./keys";
import { Nodes } from "./nodes";
import { complain, noticeRegion } from "./notice";
import { Pane } from "./pane";
import { showPreferences } from "./preferences";
import { Samples } from "./samples";
import { Sessions } from "./sessions";
import { choose, settings } from "./settings";
import { introduceGuest } from "./share";
import { Sidebar } from "./sidebar";
import { StatusBar } from "./statusbar";
import { Tabs } from "./tabs";
import { applyTheme } from "./theme";
import { Workspace } from "./workspace";

// The page makes its objects here, once: the connection, the list of sessions, the open views.

const connection = new Connection();
const sessions = new Sessions(connection);
const samples = new Samples(connection);
const nodes = new Nodes(connection);
const banner = new Banner(connection);
const statusBar = new StatusBar(connection);

const empty = h("div", { class: "welcome" });
const tabs = new Tabs(empty);
const workspace = new Workspace(connection, sessions, samples, nodes, tabs, banner);
const sidebar = new Sidebar(
  sessions,
  nodes,
  {
    create: () => void workspace.createSession(),
    createOn: () => void workspace.createSessionOn(),
    terminal: (session) => void workspace.openTerminal(session.session_id),
    activity: (session) => workspace.openActivity(session.session_id),
    recordings: (session) => workspace.openRecordings(session.session_id),
    rename: (session) => void workspace.rename(session),
    destroy: (session) => void workspace.destroy(session),
    share: (session) => workspace.share(session),
    block: (session) => {
      const open = tabs.views.find((view): view is Pane => view instanceof Pane && view.session === session.session_id && !view.terminal.over);
      return open?.marks.running ?? open?.marks.blocks.findLast((block) => block.from);
    },
  },
  () => workspace.mayOwn,
);

const pane = (then: (pane: Pane) => void) => () => {
  if (tabs.current instanceof Pane) then(tabs.current);
};
const keys = new Keys([
  { chord: "Ctrl+Shift+Enter", does: "New session", run: () => void workspace.createSession() },
  { chord: "Ctrl+Shift+←", does: "Previous tab", run: () => tabs.step(-1) },
  { chord: "Ctrl+Shift+→", does: "Next tab", run: () => tabs.step(1) },
  { chord: "Ctrl+Shift+L", does: "Go to the list of sessions", run: () => showSidebar(true) },
  { chord: "Ctrl+Shift+F", does: "Search in the terminal", run: pane((p) => p.search()) },
  { chord: "Ctrl+Shift+↑", does: "Previous command", run: pane((p) => p.marks.jump(-1)) },
  { chord: "Ctrl+Shift+↓", does: "Next command", run: pane((p) => p.marks.jump(1)) },
  { chord: "Ctrl+Shift+Y", does: "Copy the output of the selected or last command", run: pane((p) => p.copyOutput()) },
  { chord: "Ctrl+Shift+C", does: "Copy the selection", run: pane((p) => p.copySelection()) },
  { chord: "Ctrl+Shift+S", does: "Download the scrollback", run: pane((p) => p.download(false)) },
  { chord: "Ctrl+Shift+>", does: "Larger text", run: () => choose({ fontSize: settings.fontSize + 1 }) },
  { chord: "Ctrl+Shift+<", does: "Smaller text", run: () => choose({ fontSize: settings.fontSize - 1 }) },
  { chord: "Ctrl+Shift+H", does: "This list", run: () => keys.help() },
]);

const menu = button("Sessions", () => showSidebar(!document.body.classList.contains("sidebar-open")), { icon: icon("menu"), class: "icon menu" });
menu.setAttribute("aria-controls", "sidebar");

function showSidebar(open: boolean): void {
  document.body.classList.toggle("sidebar-open", open); // on a phone the sidebar covers the view
  menu.setAttribute("aria-expanded", String(open));
  if (open) sidebar.focus();
}

empty.append(
  h("h1", {}, "trl"),
  ...(guestToken
    ? [h("p", {}, "You opened a share link.")]
    : [
        h("p", {}, "Choose a session from the list, or open one."),
        h("p", {}, button("New session", () => void workspace.createSession(), { class: "primary" })),
        h("p", { class: "muted" }, "A session outlives this page: close it, come back, and it is where you left it."),
      ]),
);
const guestNote = h("p", { class: "guest-note", attr: { role: "status", hidden: true } });

document.body.replaceChildren(
  h("header", { class: "topbar" }, menu, h("span", { class: "logo", attr: { "aria-hidden": "true" } }, "trl"), tabs.bar, tabs.all,
    h("div", { class: "topbar-tools" },
      !guestToken && button("Pool", () => workspace.openPool(), { icon: icon("pool") }),
      !guestToken && button("Recordings", () => workspace.openRecordings(), { icon: icon("record") }),
      button("Keys", () => keys.help(), { icon: icon("keyboard"), hint: "Keys (Ctrl+Shift+H)" }),
      button("Settings", () => showPreferences(), { icon: icon("gear") }),
    )),
  sidebar.element,
  h("div", { class: "middle" }, guestNote, tabs.stage),
  statusBar.element,
  banner.element,
  noticeRegion,
);

tabs.changed.on(() => sidebar.tick());
const whoIsHere = () => statusBar.viewers.show(tabs.current instanceof Pane ? tabs.current.terminal : undefined, connection.up);
tabs.changed.on(whoIsHere);
tabs.selected.on(whoIsHere);
tabs.selected.on((view) => {
  document.body.classList.remove("sidebar-open");
  menu.setAttribute("aria-expanded", "false");
  const [, session] = view?.key.split("/") ?? [];
  sidebar.select(session);
});
sessions.changed.on(() => sidebar.select(tabs.current?.key.split("/")[1]));

const retitle = () => {
  if (!document.hidden) document.title = tabs.current ? `${tabs.current.label()} · trl` : "trl";
};
tabs.selected.on(retitle);
sessions.changed.on(retitle);
document.addEventListener("visibilitychange", retitle);

connection.status.on(whoIsHere);
connection.status.on((status) => {
  if (status.kind === "over") {
    guestNote.hidden = true;
    sessions.changed.emit(); // mayChange is false now
  }
  if (status.kind !== "up") return;
  void connection.call("system.capabilities", {}).then(
    (capabilities) => {
      workspace.capabilities = capabilities;
      statusBar.introduce(capabilities);
      sessions.changed.emit(); // the permissions are known now
      const share = capabilities.principal?.share;
      if (!share) return;
      document.body.classList.toggle("guest-terminal", share.term_id !== undefined); // such a guest has no list of sessions
      introduceGuest(guestNote, share);
      workspace.welcome(share).catch((error) => complain("Open", error));
    },
    () => {}, // the next connection asks again
  );
});

// Without this a browser replaces the page by a dropped file.
for (const type of ["dragover", "drop"] as const) {
  addEventListener(type, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "none"; // the pointer shows that nothing takes the file
  });
}

applyTheme();
workspace.restore();
void connection.begin();

// For the console, and for our tests.
Object.assign(window, { trl: { connection, sessions, samples, nodes, tabs, workspace, settings, choose } });
