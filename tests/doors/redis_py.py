# What a program does by redis-py: run with the path of a door's Unix socket. Ends with status 1 where something is not as with Redis.
import sys

import redis

path = sys.argv[1]
client = redis.Redis(unix_socket_path=path, decode_responses=True, client_name="redis_py")


def expect(what, wanted):
    if what != wanted:
        sys.exit(f"{what!r} in place of {wanted!r}")


client.flushdb()
expect(client.ping(), True)
expect(client.set("name", "a value", ex=100, nx=True), True)
expect(client.set("name", "another", nx=True), None)
expect(client.get("name"), "a value")
expect(client.ttl("name") in (99, 100), True)
expect(client.persist("name"), True)
expect(client.ttl("name"), -1)
expect(client.mset({"a": 1, "b": 2}), True)
expect(client.mget("a", "b", "c"), ["1", "2", None])
expect(client.incrby("a", 41), 42)
expect(client.incrbyfloat("b", 0.5), 2.5)
expect(client.append("name", "!"), 8)
expect(client.getrange("name", 0, 0), "a")
expect(client.getdel("c"), None)
expect(client.exists("a", "b", "c"), 2)
expect(client.type("a"), "string")
expect(client.rename("b", "c"), True)
expect(sorted(client.keys("?")), ["a", "c"])
expect(sorted(client.scan_iter(count=1)), ["a", "c", "name"])
expect(client.copy("a", "d"), True)
expect(client.delete("a", "d", "e"), 2)
expect(client.dbsize(), 2)
expect(client.client_getname(), "redis_py")
expect(client.info()["redis_mode"], "standalone")
expect(client.config_get("maxmemory-policy"), {"maxmemory-policy": "noeviction"})
expect(client.command_count() > 50, True)
expect(len(client.client_list()) >= 1, True)

with client.pipeline(transaction=True) as pipe:
    expect(pipe.set("t", 1).incr("t").get("t").execute(), [True, 2, "2"])
with client.pipeline(transaction=False) as pipe:
    for i in range(10_000):
        pipe.set(f"many:{i}", i)
    expect(pipe.execute().count(True), 10_000)
expect(len(set(client.scan_iter(match="many:*", count=500))), 10_000)


def count(pipe):
    now = int(pipe.get("t"))
    client.incr("other")
    pipe.multi()
    pipe.set("t", now + 1)


client.transaction(count, "t")
expect(client.get("t"), "3")
with client.pipeline() as pipe:
    pipe.watch("t")
    client.set("t", "changed")
    pipe.multi()
    pipe.set("t", "lost")
    try:
        pipe.execute()
        sys.exit("a change that was watched is not seen")
    except redis.WatchError:
        pass
try:
    client.lpush("list", 1)
    sys.exit("there are no lists")
except redis.ResponseError as error:
    expect("strings only" in str(error), True)

# Connections that go are made anew.
client.connection_pool.disconnect()
expect(client.get("t"), "changed")
other = redis.Redis(unix_socket_path=path)
expect(other.get("t"), b"changed")
print("done")
