# What a program does by redis-py's client of clusters: run with the TCP port of a door. Ends with status 1 where something is not as with Redis.
import sys

from redis.cluster import RedisCluster

client = RedisCluster(host="127.0.0.1", port=int(sys.argv[1]), decode_responses=True)


def expect(what, wanted):
    if what != wanted:
        sys.exit(f"{what!r} in place of {wanted!r}")


expect(len(client.get_nodes()), 1)
for i in range(500):
    expect(client.set(f"key:{i}", i), True)
for i in range(500):
    expect(client.get(f"key:{i}"), str(i))
expect(client.mget_nonatomic("key:1", "key:2", "none"), ["1", "2", None])
expect(client.mset({"{tag}a": 1, "{tag}b": 2}), True)
expect(client.mget("{tag}a", "{tag}b"), ["1", "2"])
expect(client.cluster_countkeysinslot(client.keyslot("tag")), 2)
expect(client.cluster_keyslot("key:1"), client.keyslot("key:1"))
expect(client.delete("key:1", "key:2"), 2)
pipe = client.pipeline()
for i in range(3, 500):
    pipe.incr(f"key:{i}")
expect(pipe.execute(), list(range(4, 501)))
expect(len(set(client.scan_iter(count=100))), 500)
replicas_too = RedisCluster(host="127.0.0.1", port=int(sys.argv[1]), read_from_replicas=True)
expect(replicas_too.get("key:3"), b"4")
client.disconnect_connection_pools()
expect(client.get("key:3"), "4")
print("done")
