package main

import (
	"fmt"
	"math/rand/v2"
)

// groups is the number of equal parts of the key space that split keys can separate.
const groups = 16

const prefix = "/bench/"

// prefixEnd is the end of the span of all keys of the workloads.
const prefixEnd = "/bench0"

// object is the key of an object. Objects are dealt out to the groups in turn.
func object(i int) string { return fmt.Sprintf("%sg%02d/object-%08d", prefix, i%groups, i/groups) }

// created is the key that a create workload makes as its nth in a cluster; it is in the same groups.
func created(n int64) string {
	return fmt.Sprintf("%sg%02d/created-%010d", prefix, n%groups, n/groups)
}

// splitKeys cuts the objects into a number of ranges as equal as the groups allow.
func splitKeys(ranges int) []string {
	var out []string
	for i := 1; i < ranges; i++ {
		out = append(out, fmt.Sprintf("%sg%02d/", prefix, i*groups/ranges))
	}
	return out
}

// noise is where values are cut from: letters and digits, so that compression finds about what it finds in real
// objects' IDs and hashes, and no two values are alike.
var noise = func() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 2<<20)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}()

func value(r *rand.Rand, size int) string {
	at := r.IntN(len(noise) - size)
	return noise[at : at+size]
}
