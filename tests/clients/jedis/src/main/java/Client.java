// What a program does by jedis. See ../../../../README.md.
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;

public final class Client {
    private static void expect(Object what, Object wanted) {
        if (!Objects.equals(what, wanted)) {
            System.err.println(what + " in place of " + wanted);
            System.exit(1);
        }
    }

    private static void useOne(JedisPooled client) {
        expect(client.ping(), "PONG");
        expect(client.set("name", "a value", SetParams.setParams().ex(100).nx()), "OK");
        expect(client.set("name", "another", SetParams.setParams().nx()), null);
        expect(client.get("name"), "a value");
        expect(client.ttl("name") > 98, true);
        expect(client.persist("name"), 1L);
        expect(client.mset("a", "1", "b", "2"), "OK");
        expect(client.mget("a", "b", "none"), Arrays.asList("1", "2", null));
        expect(client.incrBy("a", 41), 42L);
        expect(client.incrByFloat("b", 0.5), 2.5);
        expect(client.append("name", "!"), 8L);
        expect(client.exists("a", "b", "none"), 2L);
        expect(client.del("a", "b"), 2L);
        try {
            client.lpush("list", "1");
            expect("a list", "none");
        } catch (JedisDataException error) {
            expect(error.getMessage().contains("strings only"), true);
        }
        try (var pipeline = client.pipelined()) {
            List<Response<String>> answers = new ArrayList<>();
            for (int i = 0; i < 5000; ++i) {
                answers.add(pipeline.set("many:" + i, Integer.toString(i)));
            }
            pipeline.sync();
            for (Response<String> answer : answers) expect(answer.get(), "OK");
        }
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set("t", "1");
            transaction.incr("t");
            expect(transaction.exec(), List.of("OK", 2L));
        }
        Set<String> met = new HashSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            var piece = client.scan(cursor, new ScanParams().match("many:*").count(500));
            met.addAll(piece.getResult());
            cursor = piece.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        expect(met.size(), 5000);
        String long1 = "v".repeat(1 << 20);
        expect(client.set("long", long1), "OK");
        expect(client.get("long"), long1);
    }

    private static void useCluster(int port) {
        try (var cluster = new JedisCluster(Set.of(new HostAndPort("127.0.0.1", port)))) {
            for (int i = 0; i < 100; ++i) expect(cluster.set("c:" + i, "" + i), "OK");
            for (int i = 0; i < 100; ++i) expect(cluster.get("c:" + i), "" + i);
        }
    }

    /** The first call over each connection that has ended fails, and the pool makes a new one. */
    private static String setAfterRestart(JedisPooled client) {
        for (int i = 0;; ++i) {
            try {
                return client.set("after", "restart");
            } catch (JedisConnectionException error) {
                if (i == 20) throw error;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        try (var client = new JedisPooled("127.0.0.1", port)) {
            useOne(client);
            useCluster(port);
            System.out.println("restart");
            System.out.flush();
            System.in.read();
            expect(setAfterRestart(client), "OK");
            expect(client.get("after"), "restart");
            expect(client.get("name"), null);
        }
        System.out.println("done");
    }
}
