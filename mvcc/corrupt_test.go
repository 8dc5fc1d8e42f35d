package mvcc_test

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage/key"
)

// TestCorrupt: records that nobody has written like this are errors, on every way to them.
func TestCorrupt(t *testing.T) {
	user := []byte("a")
	noKind := key.AppendVersion(nil, user, key.State{Mod: 5, Create: 5, Version: 1})
	noKind[len(noKind)-6] = 0x12
	noVersion := append(key.AppendUser(nil, user), "xyz"...)
	for _, c := range []struct {
		name string
		k, v []byte
		read map[string]func(r mvcc.Reader) error
	}{
		{"version of unknown kind", noKind, nil, versionReads(user)},
		{"key without version", noVersion, nil, map[string]func(mvcc.Reader) error{"range": versionReads(user)["range"], "hash": versionReads(user)["hash"]}},
		{"event", key.AppendEvent(nil, 5, 0), []byte{9, 9}, map[string]func(mvcc.Reader) error{"events": eventReads()}},
		{"event key", []byte("e123"), []byte{1, 0, 0}, map[string]func(mvcc.Reader) error{"events": eventReads()}},
		{"attachment", append(key.AppendLeasePrefix(nil, 3), 'x'), nil, map[string]func(mvcc.Reader) error{"lease": func(r mvcc.Reader) error {
			return mvcc.LeaseKeys(r, 3, nil, nil, func([]byte) (bool, error) { return true, nil })
		}}},
	} {
		e := openEngines(t, vfs.NewMem())
		must(t, e.Data.Set(c.k, c.v, pebble.NoSync))
		for name, read := range c.read {
			if err := read(e.Data); !errors.Is(err, mvcc.ErrCorrupt) {
				t.Errorf("%s, %s: %v", c.name, name, err)
			}
		}
		must(t, e.Close())
	}
}

func versionReads(user []byte) map[string]func(mvcc.Reader) error {
	return map[string]func(mvcc.Reader) error{
		"get":   func(r mvcc.Reader) error { _, err := mvcc.Get(r, user, 9); return err },
		"state": func(r mvcc.Reader) error { _, err := mvcc.GetState(r, user, 9); return err },
		"range": func(r mvcc.Reader) error { _, err := mvcc.Range(r, mvcc.RangeOptions{Rev: 9}); return err },
		"count": func(r mvcc.Reader) error { _, err := mvcc.Count(r, nil, nil, 9); return err },
		"hash":  func(r mvcc.Reader) error { _, err := mvcc.Hash(r, nil, nil, 0, 9); return err },
		"writer": func(r mvcc.Reader) error {
			w := mvcc.NewWriter(r)
			_, err := w.State(user)
			return errors.Join(err, w.Done())
		},
	}
}

func eventReads() func(mvcc.Reader) error {
	return func(r mvcc.Reader) error {
		return mvcc.Events(r, 0, mvcc.Latest, nil, nil, func(mvcc.Event) (bool, error) { return true, nil })
	}
}
