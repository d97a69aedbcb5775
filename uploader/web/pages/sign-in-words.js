// The texts of signing in.

import { addWords } from "./i18n.js";

addWords({
  en: {
    "session.title": "Sign in",
    "session.token": "Token",
    "session.hint": "The administrator of this server made it for you. Paste it here.",
    "session.stay": "Stay signed in on this device",
    "session.show": "Show",
    "session.first": "Did you start this server yourself? The first token lies in the file owner.token of its data directory; at its start the server printed where.",
    "session.hint-jwt": "A JWT of the application that you sign in to. Paste it here.",
    "session.enter": "Sign in",
    "session.link": "Sign in with this link?",
    "session.link-text": "You are signed in here with another token. The link takes its place on this device.",
    "session.refused": "The server does not know this token. Is it complete, and still valid?",
  },
  zh: {
    "session.title": "登录",
    "session.token": "令牌",
    "session.hint": "令牌由服务器管理员为您生成，请粘贴到此处。",
    "session.stay": "在此设备上保持登录",
    "session.show": "显示",
    "session.first": "这台服务器是您自己启动的吗？第一个令牌位于其数据目录的 owner.token 文件中，启动时的输出写明了位置。",
    "session.hint-jwt": "请粘贴由身份认证方签发的 JWT。",
    "session.enter": "登录",
    "session.link": "使用此链接登录？",
    "session.link-text": "您已使用另一个令牌登录。此设备将改用链接中的令牌。",
    "session.refused": "服务器不认识此令牌。请检查它是否完整、是否仍然有效。",
  },
});
