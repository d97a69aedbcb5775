// The page at `/`: signs in, then shows what is uploaded and what is there.

import "./words.js";
import { mountHeader } from "./header.js";
import { translate } from "./i18n.js";
import { Session } from "./session.js";

translate();
const session = new Session();
await session.start();
mountHeader(document.querySelector("header.bar"), { signOut: session.hasToken ? () => session.signOut() : null });
document.getElementById("app").hidden = false;
