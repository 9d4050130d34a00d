// The page: who is signed in, which view is shown, and when it is loaded again.

import * as access from "./access.js";
import * as api from "./api.js";
import { onPointed } from "./charts.js";
import { say } from "./dialogs.js";
import { h, patch } from "./dom.js";
import * as history from "./history.js";
import { loginView } from "./login.js";
import { match, parse } from "./router.js";
import { ROUTES } from "./routes.js";
import { shell, shortcuts } from "./shell.js";

const root = document.getElementById("app");

/** Everything that is drawn follows from this. */
const app = {
  session: null,
  isReady: false,
  wasSignedOut: false,
  route: null,
  query: {},
  data: null,
  problem: "",
  /** When who does not answer has answered last; 0: it answers, or never has. */
  answeredAt: 0,
  state: {},
  vhost: stored("vhost", ""),
  everyMs: Number(stored("every", "5000")),
  vhosts: [],
  vhostsAt: 0,
  nodes: [],
  loadedAt: 0,
  isMenuOpen: false,
};

const VHOSTS_EVERY_MS = 60000;
let timer = 0;
let loading = null;

function stored(name, otherwise) {
  try {
    return localStorage.getItem(`vouchmq.${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(`vouchmq.${name}`, value);
  } catch {
    // Then it is for this visit only.
  }
}

/** What a view gets to load and to render. */
function context() {
  return {
    data: app.data, params: app.route.params, query: app.query, state: app.state, vhost: app.vhost,
    vhosts: app.vhosts, nodes: app.nodes, user: app.session?.user,
    go: (query) => {
      const [path] = location.hash.split("?");
      const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
      window.history.replaceState(null, "", given.length ? `${path}?${new URLSearchParams(given)}` : path);
      app.query = parse(location.hash).query;
      load();
    },
    draw, reload: load,
    /** Show another view, because what this one is about has gone. */
    leave: (to, done) => {
      app.vhostsAt = 0;
      clearTimeout(timer);
      say(done);
      location.hash = to;
    },
    /** Do something that changes the broker, say so, and load again. Errors are the caller's. */
    perform: async (job, done) => {
      const result = await job();
      app.vhostsAt = 0;
      if (done) {
        say(done);
      }
      await load();
      return result;
    },
  };
}

function draw() {
  if (!app.isReady) {
    return;
  }
  if (!app.session) {
    patch(root, loginView(app, signedIn));
    return;
  }
  patch(root, shell(app, viewNodes(), commands));
}

function viewNodes() {
  if (!app.route) {
    return h("div", { class: "empty" }, "There is no such page. ", h("a", { href: "#/" }, "Overview"));
  }
  if (app.data === null) {
    return app.problem ? null : h("div", { class: "empty" }, "Loading…");
  }
  return app.route.view.render(context());
}

const commands = {
  chooseVhost(name) {
    app.vhost = name;
    store("vhost", name);
    app.query = { ...app.query, page: undefined };
    load();
  },
  chooseEvery(ms) {
    app.everyMs = ms;
    store("every", String(ms));
    load();
  },
  chooseTheme(theme) {
    if (theme) {
      document.documentElement.dataset.theme = theme;
    } else {
      delete document.documentElement.dataset.theme;
    }
    store("theme", theme);
    draw();
  },
  toggleMenu(open) {
    app.isMenuOpen = open;
    draw();
  },
  reload: load,
  async signOut() {
    await api.signOut();
    signedOut(false);
  },
};

async function load() {
  clearTimeout(timer);
  loading?.abort();
  if (!app.session || !app.route) {
    draw();
    return;
  }
  const mine = new AbortController();
  loading = mine;
  const { route } = app;
  try {
    const [data] = await Promise.all([route.view.load(context(), mine.signal), loadShared(mine.signal)]);
    if (loading !== mine) {
      return;
    }
    app.data = data;
    app.problem = "";
    app.answeredAt = 0;
    app.loadedAt = Date.now();
  } catch (error) {
    if (loading !== mine || error.name === "AbortError") {
      return;
    }
    if (!(error instanceof api.ApiError)) {
      throw error;
    }
    // What was last seen stays, unless what it is about has gone.
    app.problem = error.status === 404 ? "This does not exist, or not for this user." : error.message;
    app.answeredAt = isSilence(error) ? (error.lastAnswerMs ?? app.loadedAt) : 0;
    if (error.status === 404 || error.status === 401) {
      app.data = null;
    }
  }
  draw();
  plan();
}

/** Whether nobody has answered: the management process, or the broker behind it. */
function isSilence(error) {
  return error.status === 0 || error.status === 503;
}

/** What surrounds every view. Virtual hosts are listed rarely: their totals are added up of all queues. */
async function loadShared(signal) {
  const isDue = Date.now() - app.vhostsAt > VHOSTS_EVERY_MS;
  const [vhosts, nodes] = await Promise.all([
    isDue ? api.get("vhosts", { columns: "name" }, signal) : null,
    access.mayMonitor() ? api.get("nodes", { columns: "name,running,mem_alarm,disk_free_alarm,storage_alarm,replication_alarm" }, signal) : [],
  ]);
  app.nodes = nodes;
  if (!vhosts) {
    return;
  }
  app.vhosts = vhosts.map((each) => each.name).sort();
  app.vhostsAt = Date.now();
  if (app.vhost && !app.vhosts.includes(app.vhost)) {
    app.vhost = "";
  }
}

function plan() {
  clearTimeout(timer);
  if (app.everyMs > 0 && !document.hidden && app.session) {
    timer = setTimeout(load, app.everyMs);
  }
}

function navigated() {
  const { parts, query } = parse(location.hash);
  const found = match(ROUTES, parts);
  const isSame = found && app.route && found.at === app.route.at && JSON.stringify(found.params) === JSON.stringify(app.route.params);
  app.route = found;
  app.query = query;
  app.isMenuOpen = false;
  if (!isSame) {
    app.data = null;
    app.problem = "";
    app.state = {};
    window.scrollTo(0, 0);
    draw();
    document.getElementById("main")?.focus({ preventScroll: true });
  }
  document.title = found ? `${found.title(found.params)} – VouchMQ` : "VouchMQ";
  load();
}

async function signedIn(session) {
  app.session = session;
  app.wasSignedOut = false;
  history.clear();
  let described = null;
  try {
    described = access.routesOf(await api.get("openapi.json"));
  } catch (error) {
    if (!(error instanceof api.ApiError)) {
      throw error;
    }
  }
  access.learn(session.user, described);
  navigated();
}

function signedOut(expired = true) {
  clearTimeout(timer);
  loading?.abort();
  app.session = null;
  app.data = null;
  app.wasSignedOut = expired;
  history.clear();
  draw();
}

onPointed(draw);
api.onSignedOut(signedOut);
window.addEventListener("hashchange", navigated);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : load()));
document.addEventListener("keydown", (event) => app.session && shortcuts(event, commands));

const session = await api.currentSession();
app.isReady = true;
if (session) {
  await signedIn(session);
} else {
  draw();
}
