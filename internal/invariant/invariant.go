// Package invariant panics with the name of an invariant that does not hold. It is for
// what the code relies on (O1 to O6 of the design and the named rules of each package),
// never for bad input or for the state of the world: those are errors.
package invariant

import "fmt"

// Check panics if ok is false. The name is the invariant's, such as "O3"; the rest says
// which values broke it. Guard costly arguments with Enabled.
func Check(ok bool, name, format string, args ...any) {
	if !ok {
		Fail(name, format, args...)
	}
}

// Fail panics because the named invariant does not hold.
func Fail(name, format string, args ...any) {
	panic(fmt.Sprintf("invariant %s broken: %s", name, fmt.Sprintf(format, args...)))
}
