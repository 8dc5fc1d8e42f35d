//go:build invariants

package invariant

// Enabled switches the costly checks on; it is a constant so that they vanish otherwise.
const Enabled = true
