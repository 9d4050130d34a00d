// The form to sign in.

import { signIn } from "./api.js";
import { form } from "./dialogs.js";
import { h } from "./dom.js";

/** The form; `signedIn` gets the session. */
export function loginView(app, signedIn) {
  return h("main", { class: "login", key: "login" },
    h("h1", {}, h("span", { class: "brand" }, "VouchMQ")),
    app.wasSignedOut && h("p", { class: "muted" }, "Your session has ended. Sign in again."),
    form({
      key: "login",
      fields: [
        { name: "username", label: "User name", required: true, autocomplete: "username" },
        { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
      ],
      submit: "Sign in",
      act: async ({ username, password }) => signedIn(await signIn(username, password)),
    }));
}
