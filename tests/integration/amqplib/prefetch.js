// A limit for each consumer, then one for the whole channel.
"use strict";

const { main, pause, until } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createChannel();
  const names = [`${prefix}.1`, `${prefix}.2`];
  for (const [index, name] of names.entries()) {
    await channel.assertQueue(name);
    for (let n = 1; n <= 10; n += 1) {
      channel.sendToQueue(name, Buffer.from(String(index * 10 + n)));
    }
  }
  await channel.prefetch(3, false);
  await channel.prefetch(5, true);
  const seen = [[], []];
  let last;
  for (const [index, name] of names.entries()) {
    await channel.consume(name, (m) => {
      seen[index].push(Number(m.content.toString()));
      last = m;
    });
    await pause(150);
  }
  const limited = JSON.parse(JSON.stringify(seen));
  channel.ack(last, true);
  await until(() => seen[0].length + seen[1].length === 10);
  await pause(150);
  const total = seen[0].length + seen[1].length;
  await channel.close();
  const cleaner = await connection.createChannel();
  for (const name of names) await cleaner.deleteQueue(name);
  return { limited, total };
});
