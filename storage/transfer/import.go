package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
)

// maxTableBytes is where one table of versions ends and the next begins; maxDerivedBytes is when derived entries are written out.
const (
	maxTableBytes   = 32 << 20
	maxDerivedBytes = 1 << 20
)

var tables atomic.Uint64 // numbers the temporary tables of the process

// Importer replaces the state of a range. It belongs to one goroutine at a time. Versions go to tables on disk as they come;
// memory holds the replica's records and some MiB.
type Importer struct {
	e          *storage.Engines
	start, end []byte
	r          ids.RangeID

	paths   []string
	table   *sstable.Writer
	size    int
	records map[string][]byte // the replica's
	derive  mvcc.Deriver
	batch   *pebble.Batch // derived entries
}

// Import begins to replace the state of a range. Before Finish nothing of it is to be seen but events above what the range has applied.
func Import(e *storage.Engines, start, end []byte, r ids.RangeID) (*Importer, error) {
	return &Importer{e: e, start: start, end: end, r: r, records: map[string][]byte{}, batch: e.Data.NewBatch()}, nil
}

// Add takes a chunk, in the order in which the exporter gave it.
func (i *Importer) Add(keys, values [][]byte) error {
	if len(keys) != len(values) {
		return fmt.Errorf("transfer: %d keys with %d values", len(keys), len(values))
	}
	if err := i.add(keys, values); err != nil {
		return fmt.Errorf("transfer: importing range %d: %w", i.r, err)
	}
	return nil
}

func (i *Importer) add(keys, values [][]byte) (err error) {
	var old *pebble.Iterator // of the versions that are there, moved along
	defer func() {
		if old != nil {
			err = errors.Join(err, old.Close())
		}
	}()
	for n, k := range keys {
		switch {
		case len(k) > 0 && k[0] == key.PrefixUser:
			if old == nil {
				if old, err = i.e.Data.NewIter(&pebble.IterOptions{LowerBound: k, UpperBound: []byte{key.PrefixUser + 1}}); err != nil {
					return err
				}
				old.First()
			}
			if err := i.addVersion(k, values[n], old); err != nil {
				return err
			}
		case len(k) > 0 && k[0] == key.PrefixReplica:
			i.records[string(k)] = values[n]
		default:
			return fmt.Errorf("unexpected key %x", k)
		}
	}
	return nil
}

func (i *Importer) addVersion(k, v []byte, old *pebble.Iterator) error {
	user, err := key.DecodeUser(k)
	if err != nil {
		return err
	}
	if !mvcc.Contains(i.start, i.end, user) {
		return fmt.Errorf("key %q lies outside", user)
	}
	known, err := reach(old, k)
	if err != nil {
		return err
	}
	if err := i.derive.Version(i.batch, k, known); err != nil {
		return err
	}
	if i.batch.Len() > maxDerivedBytes {
		if err := i.flushDerived(); err != nil {
			return err
		}
	}
	if i.table == nil {
		if err := i.openTable(); err != nil {
			return err
		}
	}
	if err := i.table.Set(k, v); err != nil {
		return err
	}
	if i.size += len(k) + len(v); i.size > maxTableBytes {
		return i.closeTable()
	}
	return nil
}

// reach moves an iterator forward to k and tells whether k is there. States that are exchanged have most in common, so it steps before it
// seeks.
func reach(it *pebble.Iterator, k []byte) (bool, error) {
	for range 8 {
		if !it.Valid() {
			return false, it.Error()
		}
		if c := bytes.Compare(it.Key(), k); c >= 0 {
			return c == 0, nil
		}
		it.Next()
	}
	return it.SeekGE(k) && bytes.Equal(it.Key(), k), it.Error()
}

func (i *Importer) flushDerived() error {
	if err := i.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	i.batch.Reset()
	return nil
}

func (i *Importer) openTable() error {
	path := i.e.TemporaryPath(fmt.Sprintf("import-%d-%d.sst", i.r, tables.Add(1)))
	f, err := i.e.FS().Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	i.paths, i.size = append(i.paths, path), 0
	i.table = sstable.NewWriter(objstorageprovider.NewFileWritable(f), i.e.TableOptions())
	return nil
}

func (i *Importer) closeTable() error {
	if i.table == nil {
		return nil
	}
	err := i.table.Close()
	i.table = nil
	return err
}

// Finish replaces the range's state, at once and durably; extra, if not nil, adds to the replica's records (it may set and delete). Nobody
// may write the range meanwhile; who reads it sees the old state or the new one. After an error the old
// state stands, unless the error says that only left-overs could not be removed. The importer is done either way.
func (i *Importer) Finish(extra func(w *pebble.Batch) error) error {
	err := i.finish(extra)
	i.Abort() // tables are linked into the engine by now, or of no use
	if err != nil {
		return fmt.Errorf("transfer: importing range %d: %w", i.r, err)
	}
	return nil
}

func (i *Importer) finish(extra func(w *pebble.Batch) error) error {
	if err := errors.Join(i.closeTable(), i.derive.End(i.batch)); err != nil {
		return err
	}
	if err := i.flushDerived(); err != nil {
		return err
	}
	// Versions without their events and attachments would be lost to watches and leases: these are made durable first.
	if err := i.e.FlushData(); err != nil {
		return err
	}
	if extra != nil {
		if err := i.addRecords(extra); err != nil {
			return err
		}
	}
	if err := i.writeRecords(); err != nil {
		return err
	}
	old, err := mvcc.NewIterator(i.e.Data, i.start, i.end, mvcc.Latest)
	if err != nil {
		return err
	}
	span := pebble.KeyRange{Start: key.AppendBound(nil, i.start, false), End: key.AppendBound(nil, i.end, true)}
	if _, err := i.e.Data.IngestAndExcise(context.Background(), i.paths, nil, nil, span); err != nil {
		return errors.Join(fmt.Errorf("ingesting: %w", err), old.Close())
	}
	err = i.detach(old)
	if err = errors.Join(err, old.Close()); err != nil {
		return fmt.Errorf("the new state is in place, but removing left-overs: %w", err)
	}
	return nil
}

// detach removes attachments of the old state that the new one does not have. Until then, and after a crash before, they are
// what readers of attachments skip.
func (i *Importer) detach(old *mvcc.Iterator) error {
	var k []byte
	for ok := old.First(); ok; ok = old.Next() {
		was, err := old.State()
		if err != nil {
			return err
		}
		if was.Lease == 0 {
			continue
		}
		now, err := mvcc.GetState(i.e.Data, old.Key(), mvcc.Latest)
		if err != nil {
			return err
		}
		if now.Lease == was.Lease {
			continue
		}
		k = key.AppendLease(k[:0], was.Lease, old.Key())
		if err := i.batch.Delete(k, nil); err != nil {
			return err
		}
		if i.batch.Len() > maxDerivedBytes {
			if err := i.flushDerived(); err != nil {
				return err
			}
		}
	}
	return i.flushDerived()
}

func (i *Importer) addRecords(extra func(w *pebble.Batch) error) error {
	b := i.e.Data.NewBatch()
	defer b.Close()
	if err := extra(b); err != nil {
		return err
	}
	for r := b.Reader(); ; {
		kind, k, v, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			i.records[string(k)] = bytes.Clone(v)
		case pebble.InternalKeyKindDelete:
			delete(i.records, string(k))
		default:
			return fmt.Errorf("a record of kind %v", kind)
		}
	}
}

// writeRecords writes the replica's records into a table that also removes the old ones.
func (i *Importer) writeRecords() error {
	if err := i.openTable(); err != nil {
		return err
	}
	lower, upper := key.ReplicaBounds(i.r)
	if err := i.table.DeleteRange(lower, upper); err != nil {
		return err
	}
	keys := make([]string, 0, len(i.records))
	for k := range i.records {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := i.table.Set([]byte(k), i.records[k]); err != nil {
			return err
		}
	}
	return i.closeTable()
}

// Abort gives the import up. After Finish, or a second time, it does nothing.
func (i *Importer) Abort() {
	if i.table != nil {
		_ = i.table.Close()
		i.table = nil
	}
	if i.batch != nil {
		_ = i.batch.Close()
		i.batch = nil
	}
	for _, p := range i.paths {
		_ = i.e.FS().Remove(p)
	}
	i.paths = nil
}
