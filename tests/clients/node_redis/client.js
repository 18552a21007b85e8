// What a program does by node-redis. See ../README.md.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createClient, createCluster } from "redis";

const url = `redis://127.0.0.1:${process.argv[2]}`;
const client = createClient({ url, name: "node-redis" });
client.on("error", () => {}); // while it is restarted
await client.connect();

assert.equal(await client.ping(), "PONG");
assert.equal(await client.set("name", "a value", { EX: 100, NX: true }), "OK");
assert.equal(await client.set("name", "another", { NX: true }), null);
assert.equal(await client.get("name"), "a value");
assert.ok([99, 100].includes(await client.ttl("name")));
assert.equal(await client.persist("name"), 1);
assert.equal(await client.mSet({ a: "1", b: "2" }), "OK");
assert.deepEqual(await client.mGet(["a", "b", "none"]), ["1", "2", null]);
assert.equal(await client.incrBy("a", 41), 42);
assert.equal(Number(await client.incrByFloat("b", 0.5)), 2.5);
assert.equal(await client.append("name", "!"), 8);
assert.equal(await client.getRange("name", 0, 0), "a");
assert.equal(await client.exists(["a", "b", "none"]), 2);
assert.equal(await client.del(["a", "b"]), 2);
assert.equal(await client.clientGetName(), "node-redis");
await assert.rejects(client.lPush("list", "1"), /strings only/);

// Commands of one turn go in one pipeline.
const many = Array.from({ length: 5000 }, (_, i) => client.set(`many:${i}`, String(i)));
assert.ok((await Promise.all(many)).every((answer) => answer === "OK"));
const transaction = client.multi().set("t", "1").incr("t").get("t");
assert.deepEqual(await transaction.exec(), ["OK", 2, "2"]);
const met = new Set();
for await (const keys of client.scanIterator({ MATCH: "many:*", COUNT: 500 })) {
  for (const key of keys) met.add(key);
}
assert.equal(met.size, 5000);
const long = "v".repeat(1 << 20);
assert.equal(await client.set("long", long), "OK");
assert.equal(await client.get("long"), long);

const cluster = createCluster({ rootNodes: [{ url }] });
await cluster.connect();
for (let i = 0; i < 100; ++i) assert.equal(await cluster.set(`c:${i}`, String(i)), "OK");
for (let i = 0; i < 100; ++i) assert.equal(await cluster.get(`c:${i}`), String(i));
await cluster.close();

console.log("restart");
await once(process.stdin, "data");
// Commands wait until it is connected again.
assert.equal(await client.set("after", "restart"), "OK");
assert.equal(await client.get("after"), "restart");
assert.equal(await client.get("name"), null); // the other server has nothing
await client.close();
console.log("done");
process.exit(0);
