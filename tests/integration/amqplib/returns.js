// A mandatory message nobody is bound for comes back, before its confirm.
"use strict";

const { main, until } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createConfirmChannel();
  const events = [];
  channel.on("return", (m) => {
    events.push(["return", m.fields.replyCode, m.fields.replyText, m.content.toString()]);
  });
  for (const text of ["a", "b"]) {
    channel.publish("amq.direct", prefix, Buffer.from(text), { mandatory: true }, (error) => {
      events.push(["confirm", error === null, text]);
    });
  }
  await until(() => events.length === 4);
  return events;
});
