package ranges

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
)

// check compares everything that was answered, and what the nodes hold, with the model.
func (x *random) check() {
	revs, err := x.history(x.nodes[0].log[:x.nodes[0].commit])
	if err != nil {
		x.fault("%w", err)
	}
	answered := map[ids.Revision]*record{}
	for _, r := range x.records {
		if r.resp != nil && r.resp.Code == CodeOK {
			if answered[r.resp.Revision] != nil {
				x.fault("revision %d is given to two requests", r.resp.Revision)
			}
			answered[r.resp.Revision] = r
		}
	}
	m := newModel()
	written := map[string]ids.Revision{}
	for i, ops := range revs {
		rev := ids.Revision(i + 2)
		if r := answered[rev]; r != nil {
			x.checkAnswer(m, r, ops)
		}
		for _, c := range x.txns {
			if c.committed == rev && c.saw != "" && c.saw != string(m.kvs[c.read].GetValue()) {
				x.fault("transaction %v saw %q in %s; at its revision %d there is %q", c.id, c.saw, c.read, rev, m.kvs[c.read].GetValue())
			}
		}
		for _, o := range ops {
			if id, ok := uniquePart(o.value); ok {
				if was, ok := written[id+string(o.key)]; ok && was != rev {
					x.fault("%s is written at %d and at %d", id, was, rev)
				}
				written[id] = rev
				written[id+string(o.key)] = rev
			}
		}
		m.apply(rev, ops)
	}
	for _, r := range x.records {
		if r.resp != nil && r.id != "" {
			switch rev, done := written[r.id]; {
			case r.resp.Code == CodeOK || r.resp.Code == CodeAmbiguous:
			case done:
				x.fault("%v is answered %v, yet it has revision %d", r.req, r.resp.Code, rev)
			}
		}
	}
	x.compareNodes(m)
}

func uniquePart(v []byte) (string, bool) {
	s := string(v)
	if !strings.HasPrefix(s, "#") {
		return "", false
	}
	return s[:strings.LastIndex(s, "#")+1], true
}

func (x *random) checkAnswer(m *model, r *record, ops []op) {
	want, writes := m.answer(r.req)
	var got proto.Message
	switch {
	case r.resp.Put != nil:
		got = r.resp.Put
	case r.resp.Delete != nil:
		got = r.resp.Delete
	case r.resp.Txn != nil:
		got = r.resp.Txn
	}
	if got == nil || !proto.Equal(got, want) {
		x.fault("%v at revision %d is answered\n%v, want\n%v", r.req, r.resp.Revision, got, want)
	}
	if fmt.Sprint(writes) != fmt.Sprint(ops) {
		x.fault("%v at revision %d writes %v, want %v", r.req, r.resp.Revision, ops, writes)
	}
}

func (x *random) compareNodes(m *model) {
	var first uint32
	for i, n := range x.nodes {
		if got := x.order.at(n.pos).rev; got != m.rev {
			x.fault("the order state is at revision %d, the logs hold %d", got, m.rev)
		}
		compacted := n.rep.cursor.target
		if err := m.compare(n, compacted); err != nil {
			x.fault("%w", err)
		}
		h, err := mvcc.Hash(n.eng.Data, nil, nil, compacted, m.rev)
		if err != nil {
			x.fault("%w", err)
		}
		if i == 0 {
			first = h
		} else if h != first {
			x.fault("node %d has hash %x, node 1 %x", n.id, h, first)
		}
	}
}
