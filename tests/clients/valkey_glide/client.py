# What a program does by valkey-glide. See README.md.
import asyncio
import sys

from glide import (
    Batch,
    ClusterBatch,
    ConditionalChange,
    ExpirySet,
    ExpiryType,
    GlideClient,
    GlideClientConfiguration,
    GlideClusterClient,
    GlideClusterClientConfiguration,
    NodeAddress,
    RequestError,
)

address = [NodeAddress("127.0.0.1", int(sys.argv[1]))]


def expect(what, wanted):
    if what != wanted:
        sys.exit(f"{what!r} in place of {wanted!r}")


async def use_one():
    client = await GlideClient.create(GlideClientConfiguration(address, client_name="glide"))
    expect(await client.ping(), b"PONG")
    once = ConditionalChange.ONLY_IF_DOES_NOT_EXIST
    expiry = ExpirySet(ExpiryType.SEC, 100)
    expect(await client.set("name", "a value", conditional_set=once, expiry=expiry), "OK")
    expect(await client.set("name", "another", conditional_set=once), None)
    expect(await client.get("name"), b"a value")
    expect(await client.ttl("name") in (99, 100), True)
    expect(await client.persist("name"), True)
    expect(await client.mset({"a": "1", "b": "2"}), "OK")
    expect(await client.mget(["a", "b", "none"]), [b"1", b"2", None])
    expect(await client.incrby("a", 41), 42)
    expect(await client.incrbyfloat("b", 0.5), 2.5)
    expect(await client.append("name", "!"), 8)
    expect(await client.strlen("name"), 8)
    expect(await client.exists(["a", "b", "none"]), 2)
    expect(await client.delete(["a", "b"]), 2)
    expect(await client.client_getname(), b"glide")
    try:
        await client.lpush("list", ["1"])
        sys.exit("there are no lists")
    except RequestError as error:
        expect("strings only" in str(error), True)
    pipeline = Batch(is_atomic=False)
    for i in range(2000):
        pipeline.set(f"many:{i}", str(i))
    expect((await client.exec(pipeline, raise_on_error=True)).count("OK"), 2000)
    transaction = Batch(is_atomic=True)
    transaction.set("t", "1").incr("t").get("t")
    expect(await client.exec(transaction, raise_on_error=True), ["OK", 2, b"2"])
    cursor, met = b"0", set()
    while True:
        cursor, keys = await client.scan(cursor, match="many:*", count=500)
        met.update(keys)
        if cursor == b"0":
            break
    expect(len(met), 2000)
    long = b"v" * (1 << 20)
    expect(await client.set("long", long), "OK")
    expect(await client.get("long"), long)
    return client


async def use_cluster():
    cluster = await GlideClusterClient.create(GlideClusterClientConfiguration(address))
    for i in range(100):
        expect(await cluster.set(f"c:{i}", str(i)), "OK")
    expect(await cluster.mget([f"c:{i}" for i in range(100)]), [str(i).encode() for i in range(100)])
    pipeline = ClusterBatch(is_atomic=False)
    for i in range(100):
        pipeline.incr(f"c:{i}")
    expect(await cluster.exec(pipeline, raise_on_error=True), list(range(1, 101)))
    await cluster.close()


async def main():
    client = await use_one()
    await use_cluster()
    print("restart", flush=True)
    sys.stdin.readline()
    for _ in range(100):
        try:
            expect(await client.set("after", "restart"), "OK")
            break
        except RequestError:
            await asyncio.sleep(0.1)
    expect(await client.get("after"), b"restart")
    await client.close()
    print("done")


asyncio.run(main())
