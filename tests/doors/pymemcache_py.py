# What a program does by pymemcache: run with the path of a door's Unix socket. Ends with status 1 where something is not as with memcached.
import sys

from pymemcache import MemcacheClientError, serde
from pymemcache.client.base import Client, PooledClient

path = sys.argv[1]
client = Client("unix:" + path, serde=serde.pickle_serde, default_noreply=False, timeout=20)


def expect(what, wanted):
    if what != wanted:
        sys.exit(f"{what!r} in place of {wanted!r}")


expect(client.flush_all(), True)
expect(client.version()[:2], b"1.")
expect(client.set("name", "a value", expire=100), True)
expect(client.get("name"), "a value")
expect(client.add("name", "another"), False)
expect(client.replace("none", "x"), False)
# Values of other types come back as such: pymemcache keeps the type in the flags.
expect(client.set("list", [1, "two", {"three": 3}]), True)
expect(client.get("list"), [1, "two", {"three": 3}])
expect(client.set("number", 41), True)
expect(client.incr("number", 1), 42)
expect(client.get("number"), 42)
expect(client.decr("number", 100), 0)
expect(client.incr("none", 1), None)
expect(client.set("bytes", b"a\r\nb\0"), True)
expect(client.append("bytes", b"!"), True)
expect(client.prepend("bytes", b"?"), True)
expect(client.get("bytes"), b"?a\r\nb\0!")
value, cas = client.gets("bytes")
expect(value, b"?a\r\nb\0!")
expect(client.cas("bytes", b"new", cas), True)
expect(client.cas("bytes", b"newer", cas), False)
expect(client.cas("none", b"newer", cas), None)
expect(client.touch("name", 1000), True)
expect(client.touch("none", 1000), False)
many = {f"many:{i}": str(i) for i in range(5000)}
expect(client.set_many(many), [])
expect(client.get_many(many.keys()), many)
expect(client.delete_many(list(many.keys())[:10]), True)
expect(len(client.get_many(many.keys())), 4990)
expect(client.delete("name"), True)
expect(client.delete("name"), False)
expect(client.get("name", default=5), 5)
expect(client.set("gone", "x", expire=-1), True)
expect(client.get("gone"), None)
expect(client.stats()[b"curr_connections"], 1)
expect(client.stats("settings")[b"item_size_max"], 1048576)
client.close()

client = Client("unix:" + path, timeout=20)  # which wants no answers
for i in range(1000):
    client.set("quiet", str(i), noreply=True)
expect(client.get("quiet"), b"999")
try:
    client.set("a b", "x")
    sys.exit("a key has no blank")
except MemcacheClientError:
    pass

pool = PooledClient("unix:" + path, max_pool_size=4, timeout=20)
pool.set("pooled", "x", noreply=False)
expect(pool.get("pooled"), b"x")
pool.close()
expect(pool.get("pooled"), b"x")  # connections that go are made anew
print("done")
