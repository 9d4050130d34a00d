// Which view an address shows.

import { exchangeName } from "./format.js";
import * as channels from "./views/channels.js";
import * as connections from "./views/connections.js";
import * as consumers from "./views/consumers.js";
import * as deadLetters from "./views/dead-letters.js";
import * as definitions from "./views/definitions.js";
import * as exchange from "./views/exchange.js";
import * as exchanges from "./views/exchanges.js";
import * as ledger from "./views/ledger.js";
import * as overview from "./views/overview.js";
import * as policies from "./views/policies.js";
import * as queue from "./views/queue.js";
import * as queues from "./views/queues.js";
import * as streams from "./views/streams.js";
import * as users from "./views/users.js";
import * as vhosts from "./views/vhosts.js";

const fixed = (text) => () => text;

export const ROUTES = [
  { at: "", title: fixed("Overview"), view: overview },
  { at: "queues", title: fixed("Queues"), view: queues },
  { at: "queues/:vhost/:name", title: ({ name }) => name, view: queue },
  { at: "exchanges", title: fixed("Exchanges"), view: exchanges },
  { at: "exchanges/:vhost/:name", title: ({ name }) => exchangeName(name), view: exchange },
  { at: "streams", title: fixed("Streams"), view: streams },
  { at: "dead-letters", title: fixed("Dead letters"), view: deadLetters },
  { at: "connections", title: fixed("Connections"), view: connections },
  { at: "connections/:name", title: ({ name }) => name, view: connections.one },
  { at: "channels", title: fixed("Channels"), view: channels },
  { at: "channels/:name", title: ({ name }) => name, view: channels.one },
  { at: "consumers", title: fixed("Consumers"), view: consumers },
  { at: "vhosts", title: fixed("Virtual hosts"), view: vhosts },
  { at: "vhosts/:name", title: ({ name }) => name, view: vhosts.one },
  { at: "users", title: fixed("Users"), view: users },
  { at: "users/:name", title: ({ name }) => name, view: users.one },
  { at: "policies", title: fixed("Policies"), view: policies },
  { at: "definitions", title: fixed("Definitions"), view: definitions },
  { at: "ledger", title: fixed("Ledger"), view: ledger },
];
