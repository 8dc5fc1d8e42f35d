package cluster

import (
	"reflect"
	"strings"
	"testing"

	"github.com/braidkv/braid/internal/ids"
)

// TestMemberID holds the computation to IDs that etcd has: those of its own test (membership/member_test.go) and of its
// default configuration.
func TestMemberID(t *testing.T) {
	for _, test := range []struct {
		urls  []string
		token string
		want  ids.NodeID
	}{
		{[]string{"http://10.0.0.8:2379"}, "", 14544069596553697298},
		{[]string{"http://10.0.0.1:2379", "http://10.0.0.2:2379"}, "", 16552244735972308939},
		{[]string{"http://10.0.0.2:2379", "http://10.0.0.1:2379"}, "", 16552244735972308939},
		{[]string{"http://localhost:2380"}, "etcd-cluster", 0x8e9e05c52164694d},
		{[]string{"http://127.0.0.1:12380"}, "etcd-cluster-1", 0x8211f1d0f64f3269},
		{[]string{"http://127.0.0.1:22380"}, "etcd-cluster-1", 0x91bc3c398fb3c146},
		{[]string{"http://127.0.0.1:32380"}, "etcd-cluster-1", 0xfd422379fda50e48},
	} {
		if got := MemberID(test.urls, test.token); got != test.want {
			t.Errorf("member ID of %v, token %q: %s, want %s", test.urls, test.token, got, test.want)
		}
	}
}

// TestMembers uses the cluster of etcd's Procfile and the one with default flags, whose IDs are in every etcd log.
func TestMembers(t *testing.T) {
	initial, err := ParseInitial("infra1=http://127.0.0.1:12380,infra2=http://127.0.0.1:22380,infra3=http://127.0.0.1:32380")
	if err != nil {
		t.Fatal(err)
	}
	members, id, err := Members(initial, "etcd-cluster-1")
	if err != nil {
		t.Fatal(err)
	}
	want := []Member{
		{0x8211f1d0f64f3269, "infra1", []string{"http://127.0.0.1:12380"}},
		{0x91bc3c398fb3c146, "infra2", []string{"http://127.0.0.1:22380"}},
		{0xfd422379fda50e48, "infra3", []string{"http://127.0.0.1:32380"}},
	}
	if !reflect.DeepEqual(members, want) || id != 0xef37ad9dc622a7c4 {
		t.Errorf("cluster %x of %v, want ef37ad9dc622a7c4 of %v", id, members, want)
	}
	_, id, err = Members(map[string][]string{"default": {"http://localhost:2380"}}, "etcd-cluster")
	if err != nil || id != 0xcdf818194e3a8c32 {
		t.Errorf("default cluster %x, error %v, want cdf818194e3a8c32", id, err)
	}
}

func TestMembersFaults(t *testing.T) {
	for name, initial := range map[string]map[string][]string{
		"same peer URL": {"a": {"http://x:1", "http://y:1"}, "b": {"http://y:1"}},
		"no peer URL":   {"a": nil},
	} {
		if _, _, err := Members(initial, ""); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestParseInitial(t *testing.T) {
	got, err := ParseInitial("a=http://h1:1,b=http://h2:1,a=http://h0:1,,c=unix://localhost:20000")
	want := map[string][]string{"a": {"http://h0:1", "http://h1:1"}, "b": {"http://h2:1"}, "c": {"unix://localhost:20000"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, error %v, want %v", got, err, want)
	}
	_, err = ParseInitial("a=http://h1:1,b,c=ftp://x:1,d=http://nope,e=http://h:1/path")
	for _, part := range []string{`member "b"`, `member "c"`, `member "d"`, "must not contain a path"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the faults do not name %s: %v", part, err)
		}
	}
}

func TestParseURLs(t *testing.T) {
	got, err := ParseURLs("http://b:1, http://a:1,http://b:1,unix:///run/x.sock")
	want := []string{"http://a:1", "http://b:1", "unix:///run/x.sock"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, error %v, want %v", got, err, want)
	}
	if got, err := ParseURLs(""); err != nil || got != nil {
		t.Errorf("nothing is read as %v, error %v", got, err)
	}
	for _, bad := range []string{"http://a", "a:1", "https://a:1/x", "http://a:1,", "unix://", "http://%zz:1"} {
		if got, err := ParseURLs(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}
