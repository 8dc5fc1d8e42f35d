package mvcc

import (
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/storage/key"
)

// ErrCorrupt says that the engine holds bytes which mvcc has not written.
var ErrCorrupt = errors.New("mvcc: corrupt record")

// KeyState is what a key was at a revision, without its value. The zero KeyState is a key that does not exist.
type KeyState = key.State

// keyValue makes etcd's form of a version. key and value must not be reused.
func keyValue(key []byte, s KeyState, value []byte) *mvccpb.KeyValue {
	kv := new(mvccpb.KeyValue)
	fill(kv, key, s, value)
	return kv
}

func fill(kv *mvccpb.KeyValue, key []byte, s KeyState, value []byte) {
	kv.Key, kv.Value = key, value
	kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease = int64(s.Create), int64(s.Mod), s.Version, int64(s.Lease)
}
