// The texts of what waits in the queues.

import { addWords } from "../../i18n.js";

addWords({
  en: {
    "queue.title": "Waiting to be accounted",
    "queue.hint": "Bytes that came wait in Redis until an upload rests; then they are written to the database. An upload with all its bytes waits to be merged.",
    "queue.search": "Of one user or upload ID",
    "queue.tasks": "Uploads that wait",
    "queue.pending": "Not yet in the database",
    "queue.late": "Late by",
    "queue.in-time": "In time",
    "queue.caption": "What waits, by minute",
    "queue.queue": "For",
    "queue.flush": "Accounting",
    "queue.merge": "Merging",
    "queue.minute": "Due from",
    "queue.unreadable": "unreadable",
    "queue.uploads": "Uploads",
    "queue.bytes": "Bytes",
    "queue.none": "Nothing waits.",
  },
  zh: {
    "queue.title": "等待记账",
    "queue.hint": "已到达的字节先在 Redis 中等待，上传停顿后写入数据库。字节到齐的上传等待合并。",
    "queue.search": "某个用户或上传 ID",
    "queue.tasks": "等待中的上传",
    "queue.pending": "尚未写入数据库",
    "queue.late": "延迟",
    "queue.in-time": "未延迟",
    "queue.caption": "按分钟列出的等待项",
    "queue.queue": "用途",
    "queue.flush": "记账",
    "queue.merge": "合并",
    "queue.minute": "最早到期",
    "queue.unreadable": "无法读取",
    "queue.uploads": "上传数",
    "queue.bytes": "字节",
    "queue.none": "没有等待项。",
  },
});
