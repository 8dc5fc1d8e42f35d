package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// workload is one kind of operation. They run in the order of the list, because create adds objects.
type workload struct {
	name string
	what string
	// mostClients bounds the clients, where an operation is long; 0: no bound.
	mostClients int
	writes      bool
	// before runs ahead of each measurement; nil: nothing.
	before func(ctx context.Context, l *loadState, c *connections) error
	// prepare returns the operation of one client.
	prepare func(l *loadState, client, clients int) operation
}

// operation does one operation; n counts the client's operations. It returns the user bytes that it wrote.
type operation func(ctx context.Context, k *clientv3.Client, r *rand.Rand, n int) (int, error)

// loadState is what the workloads know about one cluster.
type loadState struct {
	objects   int
	valueSize int
	page      int64
	created   atomic.Int64
	// mod holds the last known mod_revision of each object; the client that owns an object alone touches its entry.
	mod []int64
}

var errWrongAnswer = errors.New("wrong answer")

var workloads = []workload{
	{name: "put", what: "put of an existing object", writes: true, prepare: preparePut},
	{name: "update", what: "compare-and-swap on the mod_revision, each client on its own objects", writes: true, before: learn, prepare: prepareUpdate},
	{name: "hot", what: "compare-and-swap of all clients on one object", writes: true, prepare: prepareHot},
	{name: "get", what: "linearizable get of an object", prepare: func(l *loadState, _, _ int) operation { return l.get() }},
	{name: "sget", what: "serializable get of an object", prepare: func(l *loadState, _, _ int) operation { return l.get(clientv3.WithSerializable()) }},
	{name: "list", what: "list of all objects in one answer", mostClients: 8, prepare: func(l *loadState, _, _ int) operation { return l.list }},
	{name: "page", what: "list of all objects in pages", mostClients: 8, prepare: func(l *loadState, _, _ int) operation { return l.pages }},
	{name: "stream", what: "list of all objects by RangeStream", mostClients: 8, prepare: func(l *loadState, _, _ int) operation { return l.stream }},
	{name: "create", what: "create of a new object if it does not exist", writes: true, prepare: prepareCreate},
}

func findWorkload(name string) (workload, error) {
	for _, w := range workloads {
		if w.name == name {
			return w, nil
		}
	}
	return workload{}, fmt.Errorf("no workload is called %q", name)
}

func preparePut(l *loadState, _, _ int) operation {
	return func(ctx context.Context, k *clientv3.Client, r *rand.Rand, _ int) (int, error) {
		key := object(r.IntN(l.objects))
		_, err := k.Put(ctx, key, value(r, l.valueSize))
		return len(key) + l.valueSize, err
	}
}

// prepareUpdate gives each client the objects whose number is its own modulo the clients.
func prepareUpdate(l *loadState, client, clients int) operation {
	own := (l.objects - client + clients - 1) / clients
	return func(ctx context.Context, k *clientv3.Client, r *rand.Rand, _ int) (int, error) {
		if own == 0 {
			return 0, fmt.Errorf("fewer objects than clients")
		}
		i := client + clients*r.IntN(own)
		key := object(i)
		resp, err := k.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", l.mod[i])).
			Then(clientv3.OpPut(key, value(r, l.valueSize))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			l.mod[i] = resp.Header.Revision
			return len(key) + l.valueSize, nil
		}
		kvs := resp.Responses[0].GetResponseRange().GetKvs()
		if len(kvs) != 1 {
			return 0, fmt.Errorf("%w: %s is not there", errWrongAnswer, key)
		}
		l.mod[i] = kvs[0].ModRevision
		return 0, nil
	}
}

// prepareHot lets all clients swap one object; an operation is over when its swap succeeded.
func prepareHot(l *loadState, _, _ int) operation {
	known := int64(0)
	return func(ctx context.Context, k *clientv3.Client, r *rand.Rand, _ int) (int, error) {
		key := object(0)
		for {
			resp, err := k.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", known)).
				Then(clientv3.OpPut(key, value(r, l.valueSize))).Else(clientv3.OpGet(key)).Commit()
			if err != nil {
				return 0, err
			}
			if resp.Succeeded {
				known = resp.Header.Revision
				return len(key) + l.valueSize, nil
			}
			kvs := resp.Responses[0].GetResponseRange().GetKvs()
			if len(kvs) != 1 {
				return 0, fmt.Errorf("%w: %s is not there", errWrongAnswer, key)
			}
			known = kvs[0].ModRevision
		}
	}
}

func prepareCreate(l *loadState, _, _ int) operation {
	return func(ctx context.Context, k *clientv3.Client, r *rand.Rand, _ int) (int, error) {
		key := created(l.created.Add(1))
		resp, err := k.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, value(r, l.valueSize))).Commit()
		if err == nil && !resp.Succeeded {
			err = fmt.Errorf("%w: %s exists", errWrongAnswer, key)
		}
		return len(key) + l.valueSize, err
	}
}

func (l *loadState) get(opts ...clientv3.OpOption) operation {
	return func(ctx context.Context, k *clientv3.Client, r *rand.Rand, _ int) (int, error) {
		resp, err := k.Get(ctx, object(r.IntN(l.objects)), opts...)
		if err == nil && len(resp.Kvs) != 1 {
			err = fmt.Errorf("%w: %d keys for one", errWrongAnswer, len(resp.Kvs))
		}
		return 0, err
	}
}

func (l *loadState) list(ctx context.Context, k *clientv3.Client, _ *rand.Rand, _ int) (int, error) {
	resp, err := k.Get(ctx, prefix, clientv3.WithRange(prefixEnd))
	if err == nil && len(resp.Kvs) < l.objects {
		err = fmt.Errorf("%w: %d of %d objects", errWrongAnswer, len(resp.Kvs), l.objects)
	}
	return 0, err
}

func (l *loadState) stream(ctx context.Context, k *clientv3.Client, _ *rand.Rand, _ int) (int, error) {
	chunks, err := k.GetStream(ctx, prefix, clientv3.WithRange(prefixEnd))
	if err != nil {
		return 0, err
	}
	got := 0
	for c := range chunks {
		if c.Err() != nil {
			return 0, c.Err()
		}
		got += len(c.Kvs)
	}
	if got < l.objects {
		return 0, fmt.Errorf("%w: %d of %d objects", errWrongAnswer, got, l.objects)
	}
	return 0, nil
}

// pages walks the list as Kubernetes' clients do: all pages at the first one's revision.
func (l *loadState) pages(ctx context.Context, k *clientv3.Client, _ *rand.Rand, _ int) (int, error) {
	from, rev, got := prefix, int64(0), 0
	for {
		resp, err := k.Get(ctx, from, clientv3.WithRange(prefixEnd), clientv3.WithLimit(l.page), clientv3.WithRev(rev))
		if err != nil {
			return 0, err
		}
		got += len(resp.Kvs)
		if !resp.More {
			break
		}
		rev = resp.Header.Revision
		if len(resp.Kvs) == 0 {
			return 0, fmt.Errorf("%w: an empty page with more to come", errWrongAnswer)
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	if got < l.objects {
		return 0, fmt.Errorf("%w: %d of %d objects", errWrongAnswer, got, l.objects)
	}
	return 0, nil
}

// learn reads the objects' revisions, so that an update does not start with a failure.
func learn(ctx context.Context, l *loadState, c *connections) error {
	resp, err := c.nth(0).Get(ctx, prefix, clientv3.WithRange(prefixEnd), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("reading the objects' revisions: %w", err)
	}
	byKey := make(map[string]int64, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		byKey[string(kv.Key)] = kv.ModRevision
	}
	l.mod = make([]int64, l.objects)
	for i := range l.mod {
		l.mod[i] = byKey[object(i)]
	}
	return nil
}

// fill writes the objects, in transactions that stay within one group.
func (l *loadState) fill(ctx context.Context, c *connections) error {
	const batch = 100
	r := rand.New(rand.NewPCG(3, 4))
	for g := range groups {
		var ops []clientv3.Op
		for i := g; i < l.objects; i += groups {
			ops = append(ops, clientv3.OpPut(object(i), value(r, l.valueSize)))
			if len(ops) < batch && i+groups < l.objects {
				continue
			}
			if _, err := c.nth(i).Txn(ctx).Then(ops...).Commit(); err != nil {
				return fmt.Errorf("writing the objects: %w", err)
			}
			ops = nil
		}
	}
	return nil
}
