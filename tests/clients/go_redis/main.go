// What a program does by go-redis. See ../README.md.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func expect(what, wanted any) {
	if !reflect.DeepEqual(what, wanted) {
		fmt.Fprintf(os.Stderr, "%#v in place of %#v\n", what, wanted)
		os.Exit(1)
	}
}

// Of a call that should not fail.
func of[T any](answer T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return answer
}

func useOne(client *redis.Client) {
	expect(of(client.Ping(ctx).Result()), "PONG")
	expect(of(client.SetNX(ctx, "name", "a value", 100*time.Second).Result()), true)
	expect(of(client.SetNX(ctx, "name", "another", 0).Result()), false)
	expect(of(client.Get(ctx, "name").Result()), "a value")
	_, err := client.Get(ctx, "none").Result()
	expect(err, redis.Nil)
	expect(of(client.TTL(ctx, "name").Result()) > 98*time.Second, true)
	expect(of(client.Persist(ctx, "name").Result()), true)
	expect(of(client.MSet(ctx, "a", 1, "b", 2).Result()), "OK")
	expect(of(client.MGet(ctx, "a", "b", "none").Result()), []any{"1", "2", nil})
	expect(of(client.IncrBy(ctx, "a", 41).Result()), int64(42))
	expect(of(client.IncrByFloat(ctx, "b", 0.5).Result()), 2.5)
	expect(of(client.Append(ctx, "name", "!").Result()), int64(8))
	expect(of(client.Exists(ctx, "a", "b", "none").Result()), int64(2))
	expect(of(client.Del(ctx, "a", "b").Result()), int64(2))
	err = client.LPush(ctx, "list", 1).Err()
	expect(err != nil && strings.Contains(err.Error(), "strings only"), true)

	answers := of(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := 0; i < 5000; i++ {
			pipe.Set(ctx, fmt.Sprintf("many:%d", i), i, 0)
		}
		return nil
	}))
	expect(len(answers), 5000)
	var count *redis.IntCmd
	of(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", 1, 0)
		count = pipe.Incr(ctx, "t")
		return nil
	}))
	expect(count.Val(), int64(2))
	expect(client.Watch(ctx, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, "t", 3, 0).Err()
		})
		return err
	}, "t"), nil)
	met := map[string]bool{}
	for iterator := client.Scan(ctx, 0, "many:*", 500).Iterator(); iterator.Next(ctx); {
		met[iterator.Val()] = true
	}
	expect(len(met), 5000)
	long := strings.Repeat("v", 1<<20)
	expect(of(client.Set(ctx, "long", long, 0).Result()), "OK")
	expect(of(client.Get(ctx, "long").Result()) == long, true)
}

func useCluster(address string) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	defer cluster.Close()
	for i := 0; i < 100; i++ {
		expect(of(cluster.Set(ctx, fmt.Sprintf("c:%d", i), i, 0).Result()), "OK")
	}
	for i := 0; i < 100; i++ {
		expect(of(cluster.Get(ctx, fmt.Sprintf("c:%d", i)).Int()), i)
	}
}

func main() {
	address := "127.0.0.1:" + os.Args[1]
	client := redis.NewClient(&redis.Options{Addr: address, ClientName: "go-redis"})
	useOne(client)
	useCluster(address)
	fmt.Println("restart")
	of(bufio.NewReader(os.Stdin).ReadString('\n'))
	// A call over a connection that has ended is made once more by itself.
	expect(of(client.Set(ctx, "after", "restart", 0).Result()), "OK")
	expect(of(client.Get(ctx, "after").Result()), "restart")
	_, err := client.Get(ctx, "name").Result()
	expect(err, redis.Nil)
	expect(client.Close(), nil)
	fmt.Println("done")
}
