// The three confirm styles: one by one, in batches of a hundred, asynchronously in a window.
"use strict";

const { main, until } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue(prefix, { durable: true });
  const options = { persistent: true };
  const body = (n) => Buffer.from(String(n));

  let oneByOne = 0;
  for (let n = 0; n < 50; n += 1) {
    await new Promise((resolve, reject) => {
      channel.sendToQueue(queue, body(n), options, (error) => (error ? reject(error) : resolve()));
    });
    oneByOne += 1;
  }

  for (let batch = 0; batch < 3; batch += 1) {
    for (let n = 0; n < 100; n += 1) channel.sendToQueue(queue, body(50 + batch * 100 + n), options);
    await channel.waitForConfirms();
  }

  let asynchronous = 0;
  let refused = 0;
  let pending = 0;
  for (let n = 0; n < 1000; n += 1) {
    await until(() => pending < 200);
    pending += 1;
    channel.sendToQueue(queue, body(350 + n), options, (error) => {
      pending -= 1;
      if (error) refused += 1;
      else asynchronous += 1;
    });
  }
  await until(() => pending === 0);

  const { messageCount } = await channel.checkQueue(queue);
  const order = [];
  await channel.consume(queue, (m) => order.push(Number(m.content.toString())), { noAck: true });
  await until(() => order.length === 1350);
  return {
    oneByOne,
    asynchronous,
    refused,
    messageCount,
    inOrder: order.every((value, index) => value === index),
  };
});
