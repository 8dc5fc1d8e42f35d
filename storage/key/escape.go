package key

import "bytes"

const (
	escape     = 0x00
	escapedNul = 0xff
	terminator = 0x01
)

// appendEscaped appends a user key, escaped and terminated.
func appendEscaped(dst, user []byte) []byte {
	for {
		i := bytes.IndexByte(user, escape)
		if i < 0 {
			return append(append(dst, user...), escape, terminator)
		}
		dst = append(append(dst, user[:i]...), escape, escapedNul)
		user = user[i+1:]
	}
}

// unescape is the inverse of appendEscaped for a whole k; false if k is not such a thing. The result shares k's memory if nothing
// was escaped.
func unescape(k []byte) ([]byte, bool) {
	n := len(k) - 2
	if n < 0 || k[n] != escape || k[n+1] != terminator {
		return nil, false
	}
	k = k[:n:n]
	i := bytes.IndexByte(k, escape)
	if i < 0 {
		return k, true
	}
	out := make([]byte, 0, n)
	for ; i >= 0; i = bytes.IndexByte(k, escape) {
		if i+1 >= len(k) || k[i+1] != escapedNul {
			return nil, false
		}
		out, k = append(out, k[:i+1]...), k[i+2:]
	}
	return append(out, k...), true
}
