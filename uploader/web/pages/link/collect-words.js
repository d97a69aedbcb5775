// The texts of collecting, some of them in the place of those that a person reads who has an account.

import { addWords } from "../i18n.js";

addWords({
  en: {
    "collect.drop": "Drop files or folders here",
    "collect.touch": "Choose files to send",
    "collect.more": "More to send?",
    "collect.hint": "You may close this page before all is sent: come back with the same browser and choose the files again, and they go on where they stopped.",
    "collect.unfinished": { one: "{count} file is not complete yet. Choose it again, or all that you were sending: it goes on where it stopped.", other: "{count} files are not complete yet. Choose them again, or all that you were sending: they go on where they stopped." },
    "collect.sent": { one: "You have sent {count} file by this link, {size}.", other: "You have sent {count} files by this link, {size}." },
    "phase.held": "Sent, being checked",
    "thanks.title": "Sent. Thank you!",
    "thanks.text": { one: "{count} file has arrived, {size}. You can close this page, or send more.", other: "{count} files have arrived, {size}. You can close this page, or send more." },
    "problem.link-exhausted": "No more files can be sent by this link. Ask the person who gave it to you.",
    "problem.too-many-uploads": "You have too many unfinished uploads. Finish or cancel one.",
    "phase.unfinished": "interrupted: choose the file to go on, until {until}",
  },
  zh: {
    "collect.drop": "将文件或文件夹拖到此处",
    "collect.touch": "选择要发送的文件",
    "collect.more": "还有要发送的吗？",
    "collect.hint": "全部发送之前也可以关闭此页面：用同一浏览器回来并重新选择这些文件，即可从中断处继续。",
    "collect.unfinished": "还有 {count} 个文件未发送完。请重新选择它们，或重新选择您当时发送的全部文件，即可从中断处继续。",
    "collect.sent": "您已通过此链接发送 {count} 个文件，共 {size}。",
    "phase.held": "已发送，正在检查",
    "thanks.title": "已发送，谢谢！",
    "thanks.text": "已收到 {count} 个文件，共 {size}。您可以关闭此页面，或继续发送。",
    "problem.link-exhausted": "此链接不再接收文件。请联系给您链接的人。",
    "problem.too-many-uploads": "您有太多未完成的上传。请先完成或取消一个。",
    "phase.unfinished": "已中断：请选择文件以继续，保留至 {until}",
  },
});
