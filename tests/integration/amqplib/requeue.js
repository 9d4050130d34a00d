// ack, nack, nackAll and reject, with requeue: order and the redelivered flag.
"use strict";

const { drain, main } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue(prefix);
  for (let n = 1; n <= 8; n += 1) channel.sendToQueue(queue, Buffer.from(String(n)));
  const taken = [];
  for (let n = 0; n < 6; n += 1) taken.push(await channel.get(queue));
  channel.ack(taken[1]);
  channel.nack(taken[2], false, true);
  channel.reject(taken[0], true);
  channel.reject(taken[3], false);
  channel.nackAll(true);
  return drain(channel, queue);
});
