// The broker cancels a consumer whose queue is deleted; exclusive and auto-delete queues.
"use strict";

const { amqp, main, until } = require("./scenario");

async function refusal(connection, work) {
  const channel = await connection.createChannel();
  return new Promise((resolve) => {
    channel.on("error", (error) => resolve([error.code, error.message]));
    work(channel).catch(() => undefined);
  });
}

main(async (connection, prefix, url) => {
  const channel = await connection.createChannel();
  await channel.assertQueue(prefix);
  let cancelled = false;
  await channel.consume(prefix, (m) => {
    if (m === null) cancelled = true;
  });
  await (await connection.createChannel()).deleteQueue(prefix);
  await until(() => cancelled);

  const mine = `${prefix}.exclusive`;
  await channel.assertQueue(mine, { exclusive: true });
  const other = await amqp.connect(url);
  const [lockedCode] = await refusal(other, (c) => c.checkQueue(mine));
  await other.close();

  const passing = `${prefix}.auto`;
  await channel.assertQueue(passing, { autoDelete: true });
  const { consumerTag } = await channel.consume(passing, () => undefined);
  await channel.cancel(consumerTag);
  const [goneCode] = await refusal(connection, (c) => c.checkQueue(passing));
  const again = await refusal(connection, (c) => c.assertQueue(mine, { exclusive: false }));
  return { cancelled, lockedCode, goneCode, again: again[0] };
});
