// What a program does by ioredis. See ../README.md.
import assert from "node:assert/strict";
import { once } from "node:events";
import { Redis, Cluster } from "ioredis";

const port = Number(process.argv[2]);
const client = new Redis({ port, connectionName: "ioredis" });
client.on("error", () => {}); // while it is restarted

assert.equal(await client.ping(), "PONG");
assert.equal(await client.set("name", "a value", "EX", 100, "NX"), "OK");
assert.equal(await client.set("name", "another", "NX"), null);
assert.equal(await client.get("name"), "a value");
assert.ok([99, 100].includes(await client.ttl("name")));
assert.equal(await client.persist("name"), 1);
assert.equal(await client.mset({ a: 1, b: 2 }), "OK");
assert.deepEqual(await client.mget("a", "b", "none"), ["1", "2", null]);
assert.equal(await client.incrby("a", 41), 42);
assert.equal(await client.incrbyfloat("b", 0.5), "2.5");
assert.equal(await client.append("name", "!"), 8);
assert.equal(await client.getrange("name", 0, 0), "a");
assert.equal(await client.exists("a", "b", "none"), 2);
assert.equal(await client.del("a", "b"), 2);
assert.equal(await client.client("GETNAME"), "ioredis");
assert.deepEqual(await client.getBuffer("name"), Buffer.from("a value!"));
await assert.rejects(client.lpush("list", 1), /strings only/);

const pipeline = client.pipeline();
for (let i = 0; i < 5000; ++i) pipeline.set(`many:${i}`, i);
assert.ok((await pipeline.exec()).every(([error, answer]) => error === null && answer === "OK"));
const transaction = client.multi().set("t", 1).incr("t").get("t");
assert.deepEqual(await transaction.exec(), [[null, "OK"], [null, 2], [null, "2"]]);
const met = new Set();
for await (const keys of client.scanStream({ match: "many:*", count: 500 })) {
  for (const key of keys) met.add(key);
}
assert.equal(met.size, 5000);
const long = "v".repeat(1 << 20);
assert.equal(await client.set("long", long), "OK");
assert.equal(await client.get("long"), long);

const cluster = new Cluster([{ host: "127.0.0.1", port }]);
for (let i = 0; i < 100; ++i) assert.equal(await cluster.set(`c:${i}`, i), "OK");
for (let i = 0; i < 100; ++i) assert.equal(await cluster.get(`c:${i}`), String(i));
await cluster.quit();

console.log("restart");
await once(process.stdin, "data");
// Commands wait until it is connected again.
assert.equal(await client.set("after", "restart"), "OK");
assert.equal(await client.get("after"), "restart");
assert.equal(await client.get("name"), null); // the other server has nothing
await client.quit();
console.log("done");
process.exit(0);
