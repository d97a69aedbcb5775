// The texts of the sinks of events.

import { addWords } from "../../i18n.js";

addWords({
  en: {
    "sinks.title": "Events",
    "sinks.hint": "These sinks are told of events. An event that a sink does not take is sent again for more than a day; then it is dead.",
    "sinks.caption": "Sinks of events",
    "sinks.sink": "Sink",
    "sinks.condition": "State",
    "sinks.in-force": "In order",
    "sinks.late": "Late",
    "sinks.off": "Off: it said that it wants no more. `uploader events test {sink}` puts it in force again.",
    "sinks.unnamed": "Not in the settings any more: nobody is told.",
    "sinks.waiting": "Waiting",
    "sinks.lag": "Longest wait",
    "sinks.dead": "Dead",
    "sinks.replay": "Tell again",
    "sinks.replay-one": "Tell {sink} of dead events again",
    "sinks.replayed": { one: "{sink} is told of {count} event again.", other: "{sink} is told of {count} events again." },
  },
  zh: {
    "sinks.title": "事件",
    "sinks.hint": "事件会发送给这些接收方。未被接收的事件会在一天多的时间里重试，之后不再重试。",
    "sinks.caption": "事件接收方",
    "sinks.sink": "接收方",
    "sinks.condition": "状态",
    "sinks.in-force": "正常",
    "sinks.late": "延迟",
    "sinks.off": "已停用：对方表示不再接收。运行 `uploader events test {sink}` 可重新启用。",
    "sinks.unnamed": "设置中已没有此名称：不再通知。",
    "sinks.waiting": "等待中",
    "sinks.lag": "最长等待",
    "sinks.dead": "未送达",
    "sinks.replay": "重新通知",
    "sinks.replay-one": "将未送达的事件重新通知 {sink}",
    "sinks.replayed": "将向 {sink} 重新通知 {count} 个事件。",
  },
});
