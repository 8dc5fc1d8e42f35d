package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// kubernetesKeys give ranges of their own to the kinds of objects that a Kubernetes cluster writes or lists most: events, leases,
// nodes ("minions") and pods. '0' is the byte after '/', so each pair encloses exactly one kind.
var kubernetesKeys = []string{
	"/registry/events/", "/registry/events0",
	"/registry/leases/", "/registry/leases0",
	"/registry/minions/", "/registry/minions0",
	"/registry/pods/", "/registry/pods0",
}

// splitKeys puts the keys of --initial-split-keys and --initial-ranges together, ascending and each once.
func splitKeys(list, ranges string) ([][]byte, error) {
	var out [][]byte
	switch ranges {
	case "":
	case "kubernetes":
		for _, k := range kubernetesKeys {
			out = append(out, []byte(k))
		}
	default:
		return nil, fmt.Errorf("--initial-ranges: unknown value %q, want kubernetes", ranges)
	}
	given, err := parseKeys(list)
	if err != nil {
		return nil, fmt.Errorf("--initial-split-keys: %w", err)
	}
	out = append(out, given...)
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal), nil
}

// parseKeys reads comma-separated keys with the escapes \xNN, \\ and \,
func parseKeys(list string) (out [][]byte, err error) {
	if list == "" {
		return nil, nil
	}
	key := []byte{}
	end := func() error {
		if len(key) == 0 {
			return fmt.Errorf("an empty key in %q", list)
		}
		out, key = append(out, key), []byte{}
		return nil
	}
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == ',':
			if err := end(); err != nil {
				return nil, err
			}
		case c != '\\':
			key = append(key, c)
		case i+1 < len(list) && (list[i+1] == '\\' || list[i+1] == ','):
			i++
			key = append(key, list[i])
		case i+3 < len(list) && list[i+1] == 'x':
			b, err := strconv.ParseUint(list[i+2:i+4], 16, 8)
			if err != nil {
				return nil, fmt.Errorf("%q is not two hexadecimal digits", list[i+2:i+4])
			}
			i += 3
			key = append(key, byte(b))
		default:
			return nil, fmt.Errorf(`%q is none of the escapes \xNN, \\ and \,`, list[i:min(len(list), i+4)])
		}
	}
	return out, end()
}
