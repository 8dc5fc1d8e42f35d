// Package cluster computes a cluster's identity from its static configuration exactly as etcd does: every member finds the
// same IDs for all members and for the cluster without asking anybody, and they are those that etcd would have with the same flags.
package cluster

import (
	"cmp"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/braidkv/braid/internal/ids"
)

// Member is a member of the initial cluster.
type Member struct {
	ID       ids.NodeID
	Name     string
	PeerURLs []string // ascending
}

// MemberID is the ID of the member with these peer URLs in a cluster with this token: the first eight bytes of the SHA-1 of the
// sorted URLs and the token, one after the other. The member's name does not matter.
func MemberID(peerURLs []string, token string) ids.NodeID {
	sorted := slices.Sorted(slices.Values(peerURLs))
	sum := sha1.Sum([]byte(strings.Join(sorted, "") + token))
	return ids.NodeID(binary.BigEndian.Uint64(sum[:8]))
}

// ClusterID is the ID of a new cluster of these members: the first eight bytes of the SHA-1 of their ascending IDs. It
// does not change when members come and go later.
func ClusterID(members []ids.NodeID) uint64 {
	b := make([]byte, 0, 8*len(members))
	for _, id := range slices.Sorted(slices.Values(members)) {
		b = binary.BigEndian.AppendUint64(b, uint64(id))
	}
	sum := sha1.Sum(b)
	return binary.BigEndian.Uint64(sum[:8])
}

// Members names the members of an initial cluster by ascending ID, with the cluster's ID.
func Members(initial map[string][]string, token string) (members []Member, clusterID uint64, err error) {
	seen := map[string]string{}
	var all []ids.NodeID
	for _, name := range slices.Sorted(maps.Keys(initial)) {
		urls := slices.Sorted(slices.Values(initial[name]))
		if len(urls) == 0 {
			return nil, 0, fmt.Errorf("member %q has no peer URL", name)
		}
		for _, u := range urls {
			if other, ok := seen[u]; ok {
				return nil, 0, fmt.Errorf("members %q and %q have the same peer URL %s", other, name, u)
			}
			seen[u] = name
		}
		m := Member{ID: MemberID(urls, token), Name: name, PeerURLs: urls}
		members, all = append(members, m), append(all, m.ID)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	for i, m := range members {
		if m.ID == 0 || i > 0 && m.ID == members[i-1].ID {
			return nil, 0, fmt.Errorf("member %q has the ID %s, which cannot be used", m.Name, m.ID)
		}
	}
	return members, ClusterID(all), nil
}

// ParseInitial reads the value of --initial-cluster: "name=URL,name=URL", a name with several URLs once for each.
func ParseInitial(s string) (map[string][]string, error) {
	var errs []error
	out := map[string][]string{}
	for _, pair := range strings.Split(s, ",") {
		if pair == "" {
			continue
		}
		name, u, _ := strings.Cut(pair, "=")
		if err := CheckURL(u); err != nil {
			errs = append(errs, fmt.Errorf("member %q: %w", name, err))
			continue
		}
		out[name] = append(out[name], strings.TrimSpace(u))
	}
	for _, urls := range out {
		slices.Sort(urls)
	}
	return out, errors.Join(errs...)
}

// ParseURLs reads a comma-separated list of URLs. The result is ascending, without repetitions; an empty text is an empty list.
func ParseURLs(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	var errs []error
	var out []string
	for _, u := range strings.Split(s, ",") {
		u = strings.TrimSpace(u)
		if err := CheckURL(u); err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, u)
	}
	slices.Sort(out)
	return slices.Compact(out), errors.Join(errs...)
}

// CheckURL tells what is wrong with a URL of a member: it must be http or https with host and port and nothing else, or name a unix
// socket.
func CheckURL(s string) error {
	s = strings.TrimSpace(s)
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	switch u.Scheme {
	case "http", "https":
		if _, _, err := net.SplitHostPort(u.Host); err != nil {
			return fmt.Errorf(`URL address does not have the form "host:port": %s`, s)
		}
		if u.Path != "" {
			return fmt.Errorf("URL must not contain a path: %s", s)
		}
	case "unix", "unixs":
		if u.Host+u.Path == "" {
			return fmt.Errorf("URL names no socket: %s", s)
		}
	default:
		return fmt.Errorf("URL scheme must be http, https, unix, or unixs: %s", s)
	}
	return nil
}
