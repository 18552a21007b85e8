# What programs do by redis-py and pymemcache over TLS: run with the ports of both doors and the file of the certificate. Ends with status 1 where
# something is not as it should.
import ssl
import sys

import redis
from pymemcache.client.base import Client

resp, memcached, certificate = sys.argv[1:]


def expect(what, wanted):
    if what != wanted:
        sys.exit(f"{str(what)[:100]!r} in place of {str(wanted)[:100]!r}")


client = redis.Redis(port=int(resp), ssl=True, ssl_ca_certs=certificate, ssl_check_hostname=True)
expect(client.set("name", "a value"), True)
expect(client.get("name"), b"a value")
with client.pipeline(transaction=False) as pipe:
    for i in range(10_000):
        pipe.set(f"many:{i}", i)
    expect(pipe.execute().count(True), 10_000)
long = b"v" * (1 << 20)
expect(client.set("long", long), True)
expect(client.get("long"), long)
client.connection_pool.disconnect()
expect(client.get("name"), b"a value")

context = ssl.create_default_context(cafile=certificate)
other = Client(("localhost", int(memcached)), tls_context=context)
expect(other.get("name"), b"a value")
expect(other.set("k", b"w" * 100_000), True)
expect(other.get("k"), b"w" * 100_000)
expect(other.get_many([f"many:{i}" for i in range(2_000)])["many:7"], b"7")
expect(client.get("k"), b"w" * 100_000)

try:
    redis.Redis(port=int(resp), ssl=True).ping()
    sys.exit("a certificate that nobody vouches for is believed")
except redis.ConnectionError:
    pass
print("done")
